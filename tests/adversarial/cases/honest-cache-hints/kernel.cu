__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + 32 < n) asm volatile("prefetch.global.L2 [%0];" ::"l"(x + i + 32));
    if (i < n) out[i] = 2.0f * __ldcs(x + i) + __ldg(y + i);
}
