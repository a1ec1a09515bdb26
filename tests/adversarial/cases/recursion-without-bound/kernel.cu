__device__ __noinline__ int f(int n) {
    volatile int a[64];
    a[n % 64] = n;
    return n <= 0 ? 0 : f(n - 1) + a[n % 64];
}
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (f(100000 + i) == -5) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
