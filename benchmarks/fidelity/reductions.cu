// Sums of arrays: one per block, in the steps of Harris, "Optimizing Parallel Reduction in CUDA", and one of all.

// By a tree whose active threads are those of even multiples: most warps are partly idle.
__global__ void sum_modulo(const float* in, float* out) {
    __shared__ float part[256];
    const unsigned t = threadIdx.x;
    part[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned s = 1; s < blockDim.x; s *= 2) {
        if (t % (2 * s) == 0) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

// Active threads are the first ones; their strides make bank conflicts.
__global__ void sum_strided(const float* in, float* out) {
    __shared__ float part[256];
    const unsigned t = threadIdx.x;
    part[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned s = 1; s < blockDim.x; s *= 2) {
        const unsigned at = 2 * s * t;
        if (at < blockDim.x) part[at] += part[at + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

// The upper half is added to the lower one: no conflicts.
__global__ void sum_halves(const float* in, float* out) {
    __shared__ float part[256];
    const unsigned t = threadIdx.x;
    part[t] = in[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

// Each thread adds two elements as it reads.
__global__ void sum_two_first(const float* in, float* out) {
    __shared__ float part[256];
    const unsigned t = threadIdx.x, at = blockIdx.x * (blockDim.x * 2) + t;
    part[t] = in[at] + in[at + blockDim.x];
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

// The last steps of a sum of THREADS parts, by one warp that needs no barrier.
template <int THREADS, typename T>
__device__ inline void last_warp(volatile T* part, unsigned t) {
    if (THREADS >= 64) part[t] += part[t + 32];
    if (THREADS >= 32) part[t] += part[t + 16];
    if (THREADS >= 16) part[t] += part[t + 8];
    if (THREADS >= 8) part[t] += part[t + 4];
    if (THREADS >= 4) part[t] += part[t + 2];
    if (THREADS >= 2) part[t] += part[t + 1];
}

__global__ void sum_last_warp(const float* in, float* out) {
    __shared__ float part[256];
    const unsigned t = threadIdx.x, at = blockIdx.x * (blockDim.x * 2) + t;
    part[t] = in[at] + in[at + blockDim.x];
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s > 32; s /= 2) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t < 32) last_warp<256>(part, t);
    if (t == 0) out[blockIdx.x] = part[0];
}

// All steps over the parts of THREADS threads, at compile time.
template <int THREADS, typename T>
__device__ inline void all_steps(T* part, unsigned t) {
    if (THREADS >= 512) {
        if (t < 256) part[t] += part[t + 256];
        __syncthreads();
    }
    if (THREADS >= 256) {
        if (t < 128) part[t] += part[t + 128];
        __syncthreads();
    }
    if (THREADS >= 128) {
        if (t < 64) part[t] += part[t + 64];
        __syncthreads();
    }
    if (t < 32) last_warp<THREADS>(part, t);
}

template <int THREADS>
__global__ void sum_unrolled(const float* in, float* out) {
    __shared__ float part[THREADS];
    const unsigned t = threadIdx.x, at = blockIdx.x * (blockDim.x * 2) + t;
    part[t] = in[at] + in[at + blockDim.x];
    __syncthreads();
    all_steps<THREADS>(part, t);
    if (t == 0) out[blockIdx.x] = part[0];
}

// EACH elements a thread, added up in shared memory.
template <int THREADS, int EACH>
__global__ void sum_many(const float* in, float* out) {
    __shared__ float part[THREADS];
    const unsigned t = threadIdx.x, at = blockIdx.x * (THREADS * EACH) + t;
    part[t] = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) part[t] += in[at + k * THREADS];
    __syncthreads();
    all_steps<THREADS>(part, t);
    if (t == 0) out[blockIdx.x] = part[0];
}

template <int LANES, typename T>
__device__ inline T lanes_sum(T sum) {
#pragma unroll
    for (int apart = LANES / 2; apart > 0; apart /= 2) sum += __shfl_down_sync(0xffffffffu, sum, apart);
    return sum;
}

// The same in registers, with shuffles in place of shared memory.
template <int THREADS, int EACH>
__global__ void sum_shuffles(const float* in, float* out, unsigned) {
    __shared__ float of_warps[32];
    const unsigned t = threadIdx.x, at = blockIdx.x * (THREADS * EACH) + t;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) sum += in[at + k * THREADS];
    sum = lanes_sum<32>(sum);
    if (t % 32 == 0) of_warps[t / 32] = sum;
    __syncthreads();
    sum = t < blockDim.x / 32 ? of_warps[t % 32] : 0;
    if (t < 32) sum = lanes_sum<THREADS / 32>(sum);
    if (t == 0) out[blockIdx.x] = sum;
}

// The same steps for arrays of any length, in blocks of a size that is not known to the compiler.

__global__ void part_modulo(const unsigned* in, unsigned n, unsigned* out) {
    extern __shared__ unsigned part[];
    const unsigned t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
    part[t] = at < n ? in[at] : 0;
    __syncthreads();
    for (unsigned s = 1; s < blockDim.x; s *= 2) {
        if (t % (2 * s) == 0) part[t] += t + s < n ? part[t + s] : 0;
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

__global__ void part_strided(const unsigned* in, unsigned n, unsigned* out) {
    extern __shared__ unsigned part[];
    const unsigned t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
    part[t] = at < n ? in[at] : 0;
    __syncthreads();
    for (unsigned s = 1; s < blockDim.x; s *= 2) {
        const unsigned to = 2 * s * t;
        if (to < blockDim.x) part[to] += to + s < n ? part[to + s] : 0;
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

__device__ inline void halve(unsigned* part, unsigned t, unsigned least) {
    for (unsigned s = blockDim.x / 2; s > least; s /= 2) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
}

__global__ void part_halves(const unsigned* in, unsigned n, unsigned* out) {
    extern __shared__ unsigned part[];
    const unsigned t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
    part[t] = at < n ? in[at] : 0;
    __syncthreads();
    halve(part, t, 0);
    if (t == 0) out[blockIdx.x] = part[0];
}

__device__ inline void read_two(const unsigned* in, unsigned n, unsigned* part) {
    const unsigned t = threadIdx.x, at = blockIdx.x * (blockDim.x * 2) + t;
    part[t] = at < n ? in[at] : 0;
    part[t] += at + blockDim.x < n ? in[at + blockDim.x] : 0;
    __syncthreads();
}

__global__ void part_two_first(const unsigned* in, unsigned n, unsigned* out) {
    extern __shared__ unsigned part[];
    read_two(in, n, part);
    halve(part, threadIdx.x, 0);
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__device__ inline void last_of(volatile unsigned* part, unsigned t, unsigned threads) {
    for (unsigned s = 32; s > 0; s /= 2)
        if (threads >= 2 * s) part[t] += part[t + s];
}

__global__ void part_last_warp(const unsigned* in, unsigned n, unsigned* out) {
    extern __shared__ unsigned part[];
    read_two(in, n, part);
    halve(part, threadIdx.x, 32);
    if (threadIdx.x < 32) last_of(part, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__device__ inline void steps_of(unsigned* part, unsigned t) {
#pragma unroll
    for (unsigned s = 256; s >= 64; s /= 2) {
        if (blockDim.x >= 2 * s && t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t < 32) last_of(part, t, blockDim.x);
}

__global__ void part_unrolled(const unsigned* in, unsigned n, unsigned* out) {
    extern __shared__ unsigned part[];
    read_two(in, n, part);
    steps_of(part, threadIdx.x);
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__global__ void part_many(const unsigned* in, unsigned n, unsigned* out) {
    extern __shared__ unsigned part[];
    const unsigned t = threadIdx.x;
    part[t] = 0;
    for (unsigned at = blockIdx.x * (blockDim.x * 2) + t; at < n; at += gridDim.x * (blockDim.x * 2)) {
        part[t] += in[at];
        part[t] += at + blockDim.x < n ? in[at + blockDim.x] : 0;
    }
    __syncthreads();
    steps_of(part, t);
    if (t == 0) out[blockIdx.x] = part[0];
}

// Sums of integers in blocks of 128 threads: of one element each, and of four.
__device__ inline void steps_128(int* part, unsigned t) {
#pragma unroll
    for (unsigned s = 512; s >= 64; s /= 2) {
        if (blockDim.x >= 2 * s && t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t < 32) last_warp<64>(part, t);
}

__global__ void blocks_of_128(const int* in, int* out, unsigned n) {
    __shared__ int part[128];
    const unsigned t = threadIdx.x, at = blockDim.x * blockIdx.x + t;
    if (at >= n) return;
    part[t] = in[at];
    __syncthreads();
    steps_128(part, t);
    if (t == 0) out[blockIdx.x] = part[0];
}

__global__ void fours_of_128(const int* in, int* out, unsigned n) {
    extern __shared__ int part_of_four[];
    const unsigned t = threadIdx.x, at = 4 * blockDim.x * blockIdx.x + t;
    int sum = 0;
    if (at + 3 * blockDim.x < n)
        sum = in[at] + in[at + blockDim.x] + in[at + 2 * blockDim.x] + in[at + 3 * blockDim.x];
    part_of_four[t] = sum;
    __syncthreads();
    steps_128(part_of_four, t);
    if (t == 0) out[blockIdx.x] = part_of_four[0];
}

// Sums of a whole array of integers, at the bandwidth of the DRAM.
template <int THREADS, int EACH>
__global__ void total_by_tree(const int* in, int* out, int n) {
    __shared__ int part[THREADS];
    const unsigned t = threadIdx.x, at = blockIdx.x * THREADS * EACH + t;
    if (at == 0) *out = 0;
    int sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k)
        if (at + k * THREADS < n) sum += in[at + k * THREADS];
    part[t] = sum;
    __syncthreads();
    all_steps<THREADS>(part, t);
    if (t == 0) atomicAdd(out, part[0]);
}

template <int THREADS, int EACH>
__device__ inline int sum_of_fours(const int4* in, int n, int* out) {
    const unsigned at = blockIdx.x * THREADS * EACH + threadIdx.x;
    if (at == 0) *out = 0;
    int sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k)
        if (at + k * THREADS < n) {
            const int4 four = in[at + k * THREADS];
            sum += four.x + four.y + four.z + four.w;
        }
    return sum;
}

template <int THREADS, int EACH>
__global__ void total_by_shuffles(const int4* in, int* out, int n) {
    __shared__ int of_warps[32];
    const unsigned t = threadIdx.x;
    int sum = lanes_sum<32>(sum_of_fours<THREADS, EACH>(in, n, out));
    if (t % 32 == 0) of_warps[t / 32] = sum;
    __syncthreads();
    if (t < 32) sum = lanes_sum<32>(of_warps[t]);
    if (t == 0) atomicAdd(out, sum);
}

template <int THREADS, int EACH, bool REDUX>
__global__ void total_by_shared_atomics(const int4* in, int* out, int n) {
    __shared__ int together;
    const unsigned t = threadIdx.x;
    if (t == 0) together = 0;
    int sum = sum_of_fours<THREADS, EACH>(in, n, out);
    sum = REDUX ? __reduce_add_sync(0xffffffffu, sum) : lanes_sum<32>(sum);
    __syncthreads();
    if (t % 32 == 0) atomicAdd(&together, sum);
    __syncthreads();
    if (t == 0) atomicAdd(out, together);
}
