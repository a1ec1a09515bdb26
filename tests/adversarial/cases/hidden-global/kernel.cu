__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    asm volatile("// end inline asm\n { .global .u32 q; st.global.u32 [q], %0; }\n// begin inline asm" :: "r"(i));
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
