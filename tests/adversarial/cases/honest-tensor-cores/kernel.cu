#include <cuda_fp16.h>
__device__ unsigned two(const __half* low, const __half* high) {
    return __half_as_ushort(*low) | (unsigned)__half_as_ushort(*high) << 16;
}
__global__ void gemm(const __half* a, const __half* b, __half* out, int n, int k) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    const __half* rows = a + blockIdx.y * 16 * k;
    const __half* cols = b + blockIdx.x * 8 + g;
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < k; i += 16) {
        const __half *first = rows + g * k + i + t, *second = first + 8 * k;
        unsigned a0 = two(first, first + 1), a1 = two(second, second + 1), a2 = two(first + 8, first + 9), a3 = two(second + 8, second + 9);
        const __half* at = cols + (i + t) * n;
        unsigned b0 = two(at, at + n), b1 = two(at + 8 * n, at + 9 * n);
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    __half* to = out + (blockIdx.y * 16 + g) * n + blockIdx.x * 8 + t;
    to[0] = __float2half(c[0]), to[1] = __float2half(c[1]);
    to[8 * n] = __float2half(c[2]), to[8 * n + 1] = __float2half(c[3]);
}
