__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float r;
        asm volatile("{ .reg .f32 t; .reg .pred p; setp.gt.s32 p, %3, -1; @p mul.f32 t, %1, 0f40000000; add.f32 %0, t, %2; }" : "=f"(r) : "f"(x[i]), "f"(y[i]), "r"(i));
        out[i] = r;
    }
}
