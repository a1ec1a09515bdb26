// case: no barrier between store and load
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
#ifndef BUG
    __syncthreads();
#endif
    y[threadIdx.x] = s[63 - threadIdx.x];
}

// case: no barrier before a tile is overwritten
// launch: k[1, 64](x, y)
// tensors: x=f32[4,64] y=f32[64]:zeros
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    float sum = 0.0f;
    for (int t = 0; t < 4; t++) {
        s[threadIdx.x] = x[t * 64 + threadIdx.x];
        __syncthreads();
        sum += s[63 - threadIdx.x];
#ifndef BUG
        __syncthreads();
#endif
    }
    y[threadIdx.x] = sum;
}

// case: reduction that skips a barrier
// launch: k[1, 256](x, y)
// tensors: x=f32[256] y=f32[1]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[256];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int stride = 128; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) s[threadIdx.x] += s[threadIdx.x + stride];
#ifdef BUG
        if (stride > 64) __syncthreads();
#else
        __syncthreads();
#endif
    }
    if (threadIdx.x == 0) y[0] = s[0];
}

// case: partial sums read by the first warp too early
// launch: k[1, 128](x, y)
// tensors: x=f32[128] y=f32[1]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float parts[4];
    float v = x[threadIdx.x];
    for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
#ifndef BUG
    __syncthreads();
#endif
    if (threadIdx.x == 0) y[0] = parts[0] + parts[1] + parts[2] + parts[3];
}

// case: broadcast slot reused without a barrier
// launch: k[1, 64](x, y)
// tensors: x=f32[2,64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float slot;
    float total = 0.0f;
    for (int r = 0; r < 2; r++) {
        if (threadIdx.x == 0) slot = x[r * 64];
        __syncthreads();
        total += slot * x[r * 64 + threadIdx.x];
#ifndef BUG
        __syncthreads();
#endif
    }
    y[threadIdx.x] = total;
}

// case: counter without an atomic
// launch: k[1, 128](x, y)
// tensors: x=i32[128] y=i32[1]
// finds: race
__global__ void k(const int* x, int* y) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
#ifdef BUG
    if (x[threadIdx.x] > 3) count += 1;
#else
    if (x[threadIdx.x] > 3) atomicAdd(&count, 1);
#endif
    __syncthreads();
    if (threadIdx.x == 0) y[0] = count;
}

// case: histogram without an atomic
// launch: k[1, 128](x, y)
// tensors: x=i32[128] y=i32[16]
// finds: race
__global__ void k(const int* x, int* y) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
#ifdef BUG
    bins[x[threadIdx.x]]++;
#else
    atomicAdd(bins + x[threadIdx.x], 1);
#endif
    __syncthreads();
    if (threadIdx.x < 16) y[threadIdx.x] = bins[threadIdx.x];
}

// case: zeros written after the first adds
// launch: k[1, 128](x, y)
// tensors: x=i32[128] y=i32[16]
// finds: race
__global__ void k(const int* x, int* y) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
#ifndef BUG
    __syncthreads();
#endif
    atomicAdd(bins + x[threadIdx.x], 1);
    __syncthreads();
    if (threadIdx.x < 16) y[threadIdx.x] = bins[threadIdx.x];
}

// case: scan that reads what it writes
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    int i = threadIdx.x;
    s[i] = x[i];
    __syncthreads();
    for (int o = 1; o < 64; o *= 2) {
        float v = i >= o ? s[i - o] : 0.0f;
#ifndef BUG
        __syncthreads();
#endif
        s[i] += v;
        __syncthreads();
    }
    y[i] = s[i];
}

// case: double buffer with one barrier too few
// launch: k[1, 64](x, y)
// tensors: x=f32[8,64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
#ifdef BUG
    __shared__ float s[1][64];
    const int stages = 1;
#else
    __shared__ float s[2][64];
    const int stages = 2;
#endif
    float sum = 0.0f;
    s[0][threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int t = 0; t < 8; t++) {
        if (t + 1 < 8) s[(t + 1) % stages][threadIdx.x] = x[(t + 1) * 64 + threadIdx.x];
        sum += s[t % stages][63 - threadIdx.x];
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}

// case: transposed tile of one warp per row
// launch: k[1, (32, 8)](x, y)
// tensors: x=f32[32,32] y=f32[32,32]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float tile[32][33];
    for (int r = threadIdx.y; r < 32; r += 8) tile[r][threadIdx.x] = x[r * 32 + threadIdx.x];
#ifndef BUG
    __syncthreads();
#endif
    for (int r = threadIdx.y; r < 32; r += 8) y[r * 32 + threadIdx.x] = tile[threadIdx.x][r];
}

// case: __syncwarp where the block must meet
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef BUG
    __syncwarp();
#else
    __syncthreads();
#endif
    y[threadIdx.x] = s[63 - threadIdx.x];
}

// case: lanes of a warp exchange without __syncwarp
// launch: k[1, 32](x, y)
// tensors: x=f32[32] y=f32[32]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
#ifndef BUG
    __syncwarp();
#endif
    y[threadIdx.x] = s[31 - threadIdx.x];
}

// case: warp reduction in shared memory, as before Volta
// launch: k[1, 32](x, y)
// tensors: x=f32[64] y=f32[1]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ volatile float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    s[t + 32] = x[t + 32];
    __syncwarp();
    for (int o = 32; o > 0; o /= 2) {
        if (t < o) {
#ifdef BUG
            s[t] += s[t + o];
        }
#else
            float v = s[t + o];
            s[t] += v;
        }
        __syncwarp();
#endif
    }
    if (t == 0) y[0] = s[0];
}

// case: a __syncwarp that names half of the warp
// launch: k[1, 32](x, y)
// tensors: x=f32[32] y=f32[32]
// finds: race|lanes
__global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef BUG
    if (threadIdx.x < 16) __syncwarp(0xffff);
    else __syncwarp(0xffff0000);
#else
    __syncwarp();
#endif
    y[threadIdx.x] = s[31 - threadIdx.x];
}

// case: different values stored to one word
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float last;
#ifdef BUG
    if (x[threadIdx.x] > 0.0f) last = x[threadIdx.x];
#else
    if (threadIdx.x == 63) last = x[threadIdx.x];
#endif
    __syncthreads();
    y[threadIdx.x] = last;
}

// case: named barrier of other warps
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
#ifdef BUG
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 32;" ::: "memory");
    else asm volatile("bar.sync 2, 32;" ::: "memory");
#else
    asm volatile("bar.sync 1, 64;" ::: "memory");
#endif
    y[threadIdx.x] = s[63 - threadIdx.x];
}

// case: two blocks write one element
// launch: k[2, 32](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
#ifdef BUG
    y[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
#else
    y[blockIdx.x * 32 + threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
#endif
}

// case: sum over blocks without an atomic
// launch: k[8, 32](x, y)
// tensors: x=f32[256] y=f32[1]:zeros
// finds: race
__global__ void k(const float* x, float* y) {
    float v = x[blockIdx.x * 32 + threadIdx.x];
    for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x == 0) {
#ifdef BUG
        y[0] += v;
#else
        atomicAdd(y, v);
#endif
    }
}

// case: one block reads what another writes
// launch: k[4, 32](x, y)
// tensors: x=f32[160] y=f32[160]
// finds: race
__global__ void k(float* x, float* y) {
    int i = blockIdx.x * 32 + threadIdx.x;
#ifdef BUG
    x[i] = x[i + 32] + 1.0f;
#else
    y[i] = x[i + 32] + 1.0f;
#endif
}

// case: grid-wide result read without a fence of any kind
// launch: k[4, 32](x, y)
// tensors: x=f32[128] y=f32[4]
// finds: race
__global__ void k(const float* x, float* y) {
    float v = x[blockIdx.x * 32 + threadIdx.x];
    for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
#ifdef BUG
    __syncthreads();
    if (blockIdx.x == 3 && threadIdx.x == 0) y[3] = y[0] + y[1] + y[2] + v;
#endif
}

// case: overlapping tiles of an output
// launch: k[3, 32](x, y)
// tensors: x=f32[96] y=f32[96]
// finds: race
__global__ void k(const float* x, float* y) {
#ifdef BUG
    int i = blockIdx.x * 30 + threadIdx.x;
#else
    int i = blockIdx.x * 32 + threadIdx.x;
#endif
    y[i] = x[i] * (blockIdx.x + 1);
}

// case: warps of one block race on global memory
// launch: k[1, 64](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
#ifndef BUG
    __syncthreads();
#endif
    float other = y[63 - threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = other;
}

// case: producer that arrives at a named barrier before its store
// launch: k[1, 64](x, y)
// tensors: x=f32[32] y=f32[32]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    if (threadIdx.x < 32) {
#ifdef BUG
        asm volatile("bar.arrive 1, 64;" ::: "memory");
        s[threadIdx.x] = x[threadIdx.x];
#else
        s[threadIdx.x] = x[threadIdx.x];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
#endif
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[threadIdx.x - 32] = s[63 - threadIdx.x];
    }
}

// case: stage that its consumer does not give back
// launch: k[1, 96](x, y)
// tensors: x=f32[8,32] y=f32[32]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (int t = 0; t < 8; t++) {
#ifndef BUG
            if (t > 0) asm volatile("barrier.sync 2, 64;" ::: "memory");
#endif
            s[lane] = x[32 * t + lane];
            asm volatile("barrier.sync 1, 64;" ::: "memory");
        }
    } else if (threadIdx.x < 64) {
        float sum = 0.0f;
        for (int t = 0; t < 8; t++) {
            asm volatile("barrier.sync 1, 64;" ::: "memory");
            sum += s[31 - lane];
#ifndef BUG
            if (t < 7) asm volatile("barrier.arrive 2, 64;" ::: "memory");
#endif
        }
        y[lane] = sum;
    }
}

// case: reader outside the group that a named barrier orders
// launch: k[1, 128](x, y)
// tensors: x=f32[64] y=f32[64]
// finds: race
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    if (threadIdx.x < 64) {
        s[threadIdx.x] = x[threadIdx.x];
        asm volatile("barrier.sync 1, 64;" ::: "memory");
        y[threadIdx.x] = s[63 - threadIdx.x];
    }
#ifndef BUG
    __syncthreads();
#endif
    if (threadIdx.x >= 64) y[threadIdx.x - 64] = s[127 - threadIdx.x];
}
