__global__ void add(const float* x, float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i], out[i] = 2.0f * y[i];
}
