// case: cp.async read without a wait
// launch: k[1, 32](x, y)
// tensors: x=f32[128] y=f32[128]
// finds: nothing has written
#include <cuda_pipeline.h>
__global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[128];
    __pipeline_memcpy_async(s + threadIdx.x * 4, x + threadIdx.x * 4, 16);
    __pipeline_commit();
#ifndef BUG
    __pipeline_wait_prior(0);
#endif
    for (int i = 0; i < 4; i++) y[threadIdx.x * 4 + i] = s[threadIdx.x * 4 + i];
}

// case: cp.async waited for, but read without a barrier
// launch: k[1, 64](x, y)
// tensors: x=f32[256] y=f32[256]
// finds: race
#include <cuda_pipeline.h>
__global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[256];
    __pipeline_memcpy_async(s + threadIdx.x * 4, x + threadIdx.x * 4, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
#ifndef BUG
    __syncthreads();
#endif
    for (int i = 0; i < 4; i++) y[threadIdx.x * 4 + i] = s[255 - threadIdx.x * 4 - i];
}

// case: pipeline that waits for one stage too few
// launch: k[1, 32](x, y)
// tensors: x=f32[4,128] y=f32[128]
// finds: nothing has written
#include <cuda_pipeline.h>
__global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[2][128];
    float sum[4] = {};
    __pipeline_memcpy_async(s[0] + threadIdx.x * 4, x + threadIdx.x * 4, 16);
    __pipeline_commit();
    for (int t = 0; t < 4; t++) {
        if (t < 3) __pipeline_memcpy_async(s[(t + 1) % 2] + threadIdx.x * 4, x + (t + 1) * 128 + threadIdx.x * 4, 16);
        __pipeline_commit();
#ifdef BUG
        __pipeline_wait_prior(2);
#else
        __pipeline_wait_prior(1);
#endif
        for (int i = 0; i < 4; i++) sum[i] += s[t % 2][threadIdx.x * 4 + i];
    }
    for (int i = 0; i < 4; i++) y[threadIdx.x * 4 + i] = sum[i];
}

// case: stage overwritten while another warp still reads
// launch: k[1, 64](x, y)
// tensors: x=f32[4,256] y=f32[64]
// finds: race
#include <cuda_pipeline.h>
__global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[256];
    float sum = 0.0f;
    for (int t = 0; t < 4; t++) {
        __pipeline_memcpy_async(s + threadIdx.x * 4, x + t * 256 + threadIdx.x * 4, 16);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        sum += s[255 - threadIdx.x];
#ifndef BUG
        __syncthreads();
#endif
    }
    y[threadIdx.x] = sum;
}

// case: cp.async of 16 bytes to an odd address
// launch: k[1, 32](x, y)
// tensors: x=f32[128] y=f32[128]
// finds: misaligned
#include <cuda_pipeline.h>
__global__ void k(const float* x, float* y) {
    __shared__ __align__(16) float s[132];
#ifdef BUG
    const int at = threadIdx.x * 4 + 1;
#else
    const int at = threadIdx.x * 4 + 4;
#endif
    unsigned target = (unsigned)__cvta_generic_to_shared(s + at);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(target), "l"(x + threadIdx.x * 4));
    asm volatile("cp.async.wait_all;" ::: "memory");
    y[threadIdx.x * 4] = s[at];
}

// case: cluster writes into a neighbour that may have ended
// launch: k[2, 32](y, cluster=(2, 1, 1))
// tensors: y=f32[64]
// finds: ended
#include <cooperative_groups.h>
__global__ void k(float* y) {
    namespace cg = cooperative_groups;
    __shared__ float s[32];
    cg::cluster_group cluster = cg::this_cluster();
    s[threadIdx.x] = 0.0f;
    cluster.sync();
    float* other = cluster.map_shared_rank(s, 1 - cluster.block_rank());
    other[threadIdx.x] = 1.0f;
#ifndef BUG
    cluster.sync();
    y[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
#endif
}

// case: wait at the cluster's barrier without an arrival
// launch: k[2, 64](y, cluster=(2, 1, 1))
// tensors: y=f32[128]
// finds: cluster
#include <cooperative_groups.h>
__global__ void k(float* y) {
    namespace cg = cooperative_groups;
    cg::cluster_group cluster = cg::this_cluster();
#ifdef BUG
    cluster.barrier_wait(cg::cluster_group::arrival_token{});
#else
    cluster.barrier_wait(cluster.barrier_arrive());
#endif
    y[blockIdx.x * 64 + threadIdx.x] = 1.0f;
}

// case: grid barrier that one block skips
// launch: k[4, 32](y, cooperative=True)
// tensors: y=f32[128]
// finds: cooperative
#include <cooperative_groups.h>
__global__ void k(float* y) {
    namespace cg = cooperative_groups;
#ifdef BUG
    if (blockIdx.x != 3) cg::this_grid().sync();
#else
    cg::this_grid().sync();
#endif
    y[blockIdx.x * 32 + threadIdx.x] = 1.0f;
}
