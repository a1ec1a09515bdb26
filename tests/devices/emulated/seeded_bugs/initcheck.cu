// case: accumulator in shared memory never set
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[1]
// finds: nothing has written
__global__ void k(const float* x, float* y) {
    __shared__ float sum;
#ifndef BUG
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
#endif
    atomicAdd(&sum, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) y[0] = sum;
}

// case: halo of a shared tile never loaded
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: nothing has written
__global__ void k(const float* x, float* y) {
    __shared__ float s[66];
    s[threadIdx.x + 1] = x[threadIdx.x];
#ifndef BUG
    if (threadIdx.x < 2) s[65 * threadIdx.x] = 0.0f;
#endif
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x] + s[threadIdx.x + 2];
}

// case: tail of a shared tile left out
// launch: k[1, 64](x, y, i32(50))
// tensors: x=f32[50] y=f32[1]
// finds: nothing has written
__global__ void k(const float* x, float* y, int n) {
    __shared__ float s[64];
#ifdef BUG
    if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
#else
    s[threadIdx.x] = threadIdx.x < n ? x[threadIdx.x] : 0.0f;
#endif
    __syncthreads();
    for (int o = 32; o > 0; o /= 2) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[0] = s[0];
}

// case: dynamic shared memory read before any store
// launch: k[1, 32, 256](x)
// tensors: x=f32[32]
// finds: nothing has written
__global__ void k(float* x) {
    extern __shared__ float s[];
#ifdef BUG
    x[threadIdx.x] = s[threadIdx.x + 32];
#else
    s[threadIdx.x + 32] = 1.0f;
    x[threadIdx.x] = s[threadIdx.x + 32];
#endif
}

// case: workspace that nothing fills
// plan: partial = empty((64,)); k[1, 64](x, partial); second[1, 64](partial, y)
// buggy: partial = empty((64,)); second[1, 64](partial, y)
// tensors: x=f32[64] y=f32[64]
// finds: nothing has written
__global__ void k(const float* x, float* p) { p[threadIdx.x] = x[threadIdx.x]; }
__global__ void second(const float* p, float* y) { y[threadIdx.x] = p[threadIdx.x]; }

// case: workspace accumulated without zeros
// plan: sums = zeros((4,)); k[1, 64](x, sums); second[1, 4](sums, y)
// buggy: sums = empty((4,)); k[1, 64](x, sums); second[1, 4](sums, y)
// tensors: x=f32[64] y=f32[4]
// finds: nothing has written
__global__ void k(const float* x, float* p) { atomicAdd(p + threadIdx.x % 4, x[threadIdx.x]); }
__global__ void second(const float* p, float* y) { y[threadIdx.x] = p[threadIdx.x]; }

// case: workspace written in part
// plan: rows = empty((64,)); k[2, 32](x, rows, i32(64)); second[1, 64](rows, y)
// buggy: rows = empty((64,)); k[2, 32](x, rows, i32(60)); second[1, 64](rows, y)
// tensors: x=f32[64] y=f32[64]
// finds: nothing has written
__global__ void k(const float* x, float* p, int n) {
    int i = blockIdx.x * 32 + threadIdx.x;
    if (i < n) p[i] = x[i];
}
__global__ void second(const float* p, float* y) { y[threadIdx.x] = p[threadIdx.x]; }
