// Matrix products of a warp's fragments in registers, with FP32 sums: 8 independent chains.

template <typename Product>
__device__ __forceinline__ void products(int* out, int rounds, Product product) {
    float d[8][4] = {};
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int k = 0; k < 8; k++) product(d[k]);
    }
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
    if (sum == -12345) out[0] = 1;
}

// Before compute capability 8.0 the largest product is m16n8k8, and there is none of TF32.
extern "C" __global__ void products_fp16(int* out, int rounds) {
    unsigned zero = 0;
    products(out, rounds, [=](float* d) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(zero));
#else
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4}, {%4}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(zero));
#endif
    });
}

extern "C" __global__ void products_tf32(int* out, int rounds) {
    unsigned zero = 0;
    products(out, rounds, [=](float* d) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(zero));
#endif
    });
}
