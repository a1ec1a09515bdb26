// case: a barrier that some lanes of a warp skip, before one for all
// launch: k[1, 64](x)
// tensors: x=f32[64]
// finds: syncthreads
__global__ void k(float* x) {
#ifdef BUG
    if (threadIdx.x < 48) __syncthreads();
#else
    __syncthreads();
#endif
    x[threadIdx.x] += 1.0f;
    __syncthreads();
    x[threadIdx.x] += 1.0f;
}

// case: barriers of two branches in one warp
// launch: k[1, 32](x)
// tensors: x=f32[32]
// finds: syncthreads
__global__ void k(float* x) {
#ifdef BUG
    if (threadIdx.x < 16) { x[threadIdx.x] = 1.0f; __syncthreads(); x[threadIdx.x] = 3.0f; }
    else { x[threadIdx.x] = 2.0f; __syncthreads(); x[threadIdx.x] = 4.0f; }
#else
    x[threadIdx.x] = threadIdx.x < 16 ? 1.0f : 2.0f;
    __syncthreads();
#endif
}

// case: lanes return, and the others meet at two barriers
// launch: k[1, 32](x, i32(20))
// tensors: x=f32[32]
// finds: syncthreads
__global__ void k(float* x, int n) {
    if (threadIdx.x >= n) return;
#ifdef BUG
    if (x[threadIdx.x] > 0.0f) { x[threadIdx.x] = 1.0f; __syncthreads(); x[threadIdx.x] += 1.0f; }
    else { x[threadIdx.x] = 2.0f; __syncthreads(); x[threadIdx.x] += 2.0f; }
#else
    x[threadIdx.x] = x[threadIdx.x] > 0.0f ? 1.0f : 2.0f;
    __syncthreads();
    x[threadIdx.x] += 1.0f;
#endif
}

// case: loop with unequal trip counts around a barrier
// launch: k[1, 64](x, y)
// tensors: x=i32[64]:arange y=i32[64]
// finds: syncthreads
__global__ void k(const int* x, int* y) {
    int sum = 0;
#ifdef BUG
    int trips = 1 + x[threadIdx.x] % 3;
#else
    int trips = 1 + x[32] % 3;
#endif
    for (int i = 0; i < trips; i++) {
        sum += i;
        __syncthreads();
    }
    y[threadIdx.x] = sum;
    __syncthreads();
    y[threadIdx.x] += 1;
}

// case: shuffle that names lanes which left
// launch: k[1, 32](x)
// tensors: x=f32[32]
// finds: lanes
__global__ void k(float* x) {
    float v = x[threadIdx.x];
#ifdef BUG
    if (threadIdx.x < 20) v += __shfl_down_sync(0xffffffff, v, 8);
#else
    v += __shfl_down_sync(0xffffffff, v, 8);
#endif
    x[threadIdx.x] = v;
}

// case: vote after a return of some lanes
// launch: k[1, 32](x, i32(20))
// tensors: x=i32[32]
// finds: lanes
__global__ void k(int* x, int n) {
#ifdef BUG
    if (threadIdx.x >= n) return;
    x[threadIdx.x] = __ballot_sync(0xffffffff, x[threadIdx.x] > 3);
#else
    unsigned votes = __ballot_sync(0xffffffff, x[threadIdx.x] > 3);
    if (threadIdx.x < n) x[threadIdx.x] = votes;
#endif
}

// case: __syncwarp names lanes of the other branch
// launch: k[1, 32](x)
// tensors: x=f32[32]
// finds: lanes
__global__ void k(float* x) {
#ifdef BUG
    if (threadIdx.x < 16) __syncwarp();
    else x[threadIdx.x] = 2.0f;
#else
    if (threadIdx.x < 16) __syncwarp(0xffff);
    else x[threadIdx.x] = 2.0f;
#endif
}

// case: a lane outside the mask that it passes
// launch: k[1, 32](x)
// tensors: x=f32[32]
// finds: lanes
__global__ void k(float* x) {
#ifdef BUG
    x[threadIdx.x] = __shfl_sync(0xffff, x[threadIdx.x], 0);
#else
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xffff, x[threadIdx.x], 0);
#endif
}

// case: named barrier with too few arrivals
// launch: k[1, 96](x)
// tensors: x=f32[96]
// finds: syncthreads|barrier
__global__ void k(float* x) {
    if (threadIdx.x < 64) {
#ifdef BUG
        asm volatile("bar.sync 1, 96;" ::: "memory");
#else
        asm volatile("bar.sync 1, 64;" ::: "memory");
#endif
        x[threadIdx.x] = 1.0f;
    }
}

// case: producer and consumer on barriers of different numbers
// launch: k[1, 64](x, y)
// tensors: x=f32[32] y=f32[32]
// finds: syncthreads|barrier
__global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    if (threadIdx.x < 32) {
        s[threadIdx.x] = x[threadIdx.x];
#ifdef BUG
        asm volatile("bar.arrive 2, 64;" ::: "memory");
#else
        asm volatile("bar.arrive 1, 64;" ::: "memory");
#endif
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[threadIdx.x - 32] = s[threadIdx.x - 32];
    }
}

// case: wait for a flag that nobody sets
// launch: k[1, 64](x, y)
// tensors: x=i32[1]:zeros y=i32[64]
// finds: did not end|budget|timeout
// seconds: 3
__global__ void k(int* x, int* y) {
    if (threadIdx.x >= 32) while (atomicAdd(x, 0) == 0) {}
#ifndef BUG
    else atomicExch(x, 1);
#endif
    y[threadIdx.x] = 1;
}

// case: trap on bad input
// launch: k[1, 32](x)
// tensors: x=i32[32]:arange
// finds: trap
__global__ void k(int* x) {
#ifdef BUG
    if (x[threadIdx.x] == 31) __trap();
#else
    if (x[threadIdx.x] == 32) __trap();
#endif
    x[threadIdx.x] = 0;
}

// case: failed assertion
// launch: k[1, 32](x)
// tensors: x=i32[32]:arange
// finds: assert
#include <assert.h>
__global__ void k(int* x) {
#ifdef BUG
    assert(x[threadIdx.x] < 16);
#else
    assert(x[threadIdx.x] < 32);
#endif
    x[threadIdx.x] = 0;
}
