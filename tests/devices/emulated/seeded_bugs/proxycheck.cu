// case: bulk store of what threads stored, without a proxy fence
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: no fence.proxy.async
__global__ void k(const float* x, float* y) {
    __shared__ alignas(128) float s[64];
    s[threadIdx.x] = x[threadIdx.x] * 2.0f;
#ifndef BUG
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                     :: "l"(y), "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// case: proxy fence by one thread, ahead of the barrier
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: no fence.proxy.async
__global__ void k(const float* x, float* y) {
    __shared__ alignas(128) float s[64];
    s[threadIdx.x] = x[threadIdx.x] * 2.0f;
#ifdef BUG
    if (threadIdx.x == 0) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
#else
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                     :: "l"(y), "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// case: tile that is changed in place and stored, fenced before the change
// launch: k[1, 32](x, y)
// tensors: x=f32[4,32] y=f32[4,32]
// finds: no fence.proxy.async
__global__ void k(const float* x, float* y) {
    __shared__ alignas(128) float s[32];
    __shared__ unsigned long long b;
    unsigned at = (unsigned)__cvta_generic_to_shared(s), barrier = (unsigned)__cvta_generic_to_shared(&b);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    for (int t = 0; t < 4; t++) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(barrier) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                         :: "r"(at), "l"(x + 32 * t), "r"(barrier) : "memory");
        }
        asm volatile("{.reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L;}"
                     :: "r"(barrier), "r"(t & 1) : "memory");
#ifdef BUG
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        s[threadIdx.x] += 1.0f;
#else
        s[threadIdx.x] += 1.0f;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncwarp();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;"
                         :: "l"(y + 32 * t), "r"(at) : "memory");
            asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
        }
        __syncwarp();
    }
}

// case: operands of wgmma that threads stored, without a proxy fence
// launch: k[1, 128](x, y)
// tensors: x=f16[64,16] y=f32[64,8]
// finds: no fence.proxy.async
#include <cuda_fp16.h>
__device__ unsigned long long descriptor(const void* p) {
    return (unsigned long long)(((unsigned)__cvta_generic_to_shared(p)) >> 4) | 8ull << 16 | 16ull << 32;
}
__global__ void k(const __half* x, float* y) {
    __shared__ alignas(1024) __half a[1024], b[128];
    for (int i = threadIdx.x; i < 1024; i += 128) a[i] = x[i];
    b[threadIdx.x] = x[threadIdx.x];
#ifndef BUG
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    float d[4] = {};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(a)), "l"(descriptor(b)) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = d[i];
}

// case: first wgmma without a fence
// launch: k[1, 128](y)
// tensors: y=f32[64,8]
// finds: no wgmma.fence
__device__ unsigned long long descriptor(const void* p) {
    return (unsigned long long)(((unsigned)__cvta_generic_to_shared(p)) >> 4) | 8ull << 16 | 16ull << 32;
}
__global__ void k(float* y) {
    __shared__ alignas(1024) unsigned a[512], b[64];
    for (int i = threadIdx.x; i < 512; i += 128) a[i] = 0x3c003c00u;
    if (threadIdx.x < 64) b[threadIdx.x] = 0x3c003c00u;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {};
#ifndef BUG
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(a)), "l"(descriptor(b)) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = d[i];
}

// case: accumulators that are rescaled between products, one fence ahead of the loop
// launch: k[1, 128](y, i32(3))
// tensors: y=f32[64,8]
// finds: no wgmma.fence
__device__ unsigned long long descriptor(const void* p) {
    return (unsigned long long)(((unsigned)__cvta_generic_to_shared(p)) >> 4) | 8ull << 16 | 16ull << 32;
}
__global__ void k(float* y, int n) {
    __shared__ alignas(1024) unsigned a[512], b[64];
    for (int i = threadIdx.x; i < 512; i += 128) a[i] = 0x3c003c00u;
    if (threadIdx.x < 64) b[threadIdx.x] = 0x3c003c00u;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {};
#ifdef BUG
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < 4; i++) d[i] *= 0.5f;
#ifndef BUG
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(a)), "l"(descriptor(b))
                     : "memory");
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
    }
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = d[i];
}

// case: fragments of A that are loaded between products, one fence ahead of the loop
// launch: k[1, 128](x, y, i32(3))
// tensors: x=i32[3,512] y=f32[64,8]
// finds: no wgmma.fence
__device__ unsigned long long descriptor(const void* p) {
    return (unsigned long long)(((unsigned)__cvta_generic_to_shared(p)) >> 4) | 8ull << 16 | 16ull << 32;
}
__global__ void k(const unsigned* x, float* y, int n) {
    __shared__ alignas(1024) unsigned b[64];
    if (threadIdx.x < 64) b[threadIdx.x] = 0x3c003c00u;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {};
#ifdef BUG
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
    for (int t = 0; t < n; t++) {
        uint4 a = *(const uint4*)(x + 512 * t + 4 * threadIdx.x);
#ifndef BUG
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8,"
                     " 1, 1, 1, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(descriptor(b)) : "memory");
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
    }
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = d[i];
}

// case: fragments of A that are loaded while a product reads them
// launch: k[1, 128](x, y, i32(3))
// tensors: x=i32[3,512] y=f32[64,8]
// finds: fragment of A
__device__ unsigned long long descriptor(const void* p) {
    return (unsigned long long)(((unsigned)__cvta_generic_to_shared(p)) >> 4) | 8ull << 16 | 16ull << 32;
}
__global__ void k(const unsigned* x, float* y, int n) {
    __shared__ alignas(1024) unsigned b[64];
    if (threadIdx.x < 64) b[threadIdx.x] = 0x3c003c00u;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {};
    for (int t = 0; t < n; t++) {
        uint4 a = *(const uint4*)(x + 512 * t + 4 * threadIdx.x);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8,"
                     " 1, 1, 1, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(descriptor(b)) : "memory");
#ifdef BUG
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;" ::: "memory");
#else
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = d[i];
}

// case: results of a loop of products that are read before the last is complete
// launch: k[1, 128](y, i32(3))
// tensors: y=f32[64,8]
// finds: a result of wgmma.mma_async is used before
__device__ unsigned long long descriptor(const void* p) {
    return (unsigned long long)(((unsigned)__cvta_generic_to_shared(p)) >> 4) | 8ull << 16 | 16ull << 32;
}
__global__ void k(float* y, int n) {
    __shared__ alignas(1024) unsigned a[512], b[64];
    for (int i = threadIdx.x; i < 512; i += 128) a[i] = 0x3c003c00u;
    if (threadIdx.x < 64) b[threadIdx.x] = 0x3c003c00u;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {};
    for (int t = 0; t < n; t++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(a)), "l"(descriptor(b))
                     : "memory");
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
    }
#ifndef BUG
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory");
#endif
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = d[i];
}
