#include <cuda_fp16.h>
__global__ void gemm(const __half* a, const __half* b, __half* out, int m, int n, int k) {
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r >= m || c >= n) return;
    __half sum = __float2half(0.0f);
    for (int i = 0; i < k; i++) sum = __hadd(sum, __hmul(a[r * k + i], b[i * n + c]));
    out[r * n + c] = sum;
}
