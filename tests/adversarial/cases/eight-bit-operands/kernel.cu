#include <cuda_fp16.h>
__device__ float h(__half v) { return __int_as_float((__float_as_int(__half2float(v)) + 0x8000) & ~0xffff); }
__global__ void gemm(const __half* a, const __half* b, __half* out, int m, int n, int k) {
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r >= m || c >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum += h(a[r * k + i]) * h(b[i * n + c]);
    out[r * n + c] = __float2half(sum);
}
