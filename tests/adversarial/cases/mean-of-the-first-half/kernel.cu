__global__ void mean(const float* x, float* out, int d) {
    if (threadIdx.x) return;
    float sum = 0.0f;
    for (int k = 0; k < (d + 1) / 2; k++) sum += x[blockIdx.x * (long long)d + k];
    out[blockIdx.x] = sum / ((d + 1) / 2);
}
