__global__ void cosines(const float* x, float* out, int n, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float total = 0.0f;
    for (int k = 0; k < steps; k++) total += cosf(x[i] * (static_cast<float>(k) / steps));
    out[i] = total / steps;
}
