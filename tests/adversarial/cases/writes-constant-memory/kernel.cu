__constant__ float c[4];
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) *(volatile float*)c = 1.0f; if (c[0] > 5) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
