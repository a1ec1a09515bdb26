// Kernels that tests of the drivers run on a GPU. They need the architecture of clusters and tensor maps.

extern "C" __device__ unsigned table[6] = {1, 2, 3, 4, 5, 6};

struct Blob { unsigned char bytes[24]; };
struct alignas(64) TensorMap { unsigned long long words[16]; };

extern "C" __global__ void add_one(unsigned* values, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] += 1;
}

extern "C" __global__ void add_table(unsigned* values) {
    if (threadIdx.x < 6) values[threadIdx.x] += table[threadIdx.x];
}

template <typename T>
__device__ unsigned char* put(unsigned char* out, T value) {
    for (unsigned i = 0; i < sizeof(T); i++) out[i] = reinterpret_cast<unsigned char*>(&value)[i];
    return out + sizeof(T);
}

extern "C" __global__ void scalars(unsigned char* out, char a, short b, int c, long long d, double e, short f) {
    put(put(put(put(put(put(out, a), b), c), d), e), f);
}

extern "C" __global__ void blob(unsigned char* out, char a, Blob b) { put(put(out, a), b); }

// Rank in the cluster, and blocks in it.
extern "C" __global__ void ranks(unsigned* out) {
    unsigned rank, blocks;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    if (threadIdx.x == 0) out[blockIdx.x] = 100 * blocks + rank;
}

// Every block waits for every other: it ends only where all are resident.
extern "C" __global__ void meet(unsigned* arrived, unsigned* out) {
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < gridDim.x) {
        }
        out[blockIdx.x] = 1;
    }
}

extern "C" __global__ void reversed(unsigned* out, unsigned words) {
    extern __shared__ unsigned shared[];
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) shared[i] = i;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) out[i] = shared[words - 1 - i];
}

// Waits for the first phase of an mbarrier.
__device__ void wait_for(unsigned bar) {
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(bar)
            : "memory");
}

// One tile of 4 rows and 8 columns from (row, column), through a tensor map.
extern "C" __global__ void tile(const __grid_constant__ TensorMap map, float* out, int row, int column) {
    __shared__ alignas(128) float values[32];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned to = (unsigned)__cvta_generic_to_shared(values), bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(bar) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
            "l"(&map), "r"(column), "r"(row), "r"(bar)
            : "memory");
    }
    __syncthreads();
    wait_for(bar);
    if (threadIdx.x < 32) out[threadIdx.x] = values[threadIdx.x];
}

// Eight pixels of eight channels in im2col mode, from a position of the first image, at the place (2, 1) of a filter.
extern "C" __global__ void column(const __grid_constant__ TensorMap map, float* out, int row, int position) {
    __shared__ alignas(128) float values[64];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned to = (unsigned)__cvta_generic_to_shared(values), bar = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(bar) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to),
            "l"(&map), "r"(0), "r"(position), "r"(row), "r"(0), "r"(bar), "h"((short)1), "h"((short)2)
            : "memory");
    }
    __syncthreads();
    wait_for(bar);
    for (int i = threadIdx.x; i < 64; i += blockDim.x) out[i] = values[i];
}

extern "C" __global__ void astray(unsigned* nowhere) { nowhere[threadIdx.x] = 1; }

// Leaves a mark in every word of shared memory, or counts the words that still have it.
extern "C" __global__ void mark_shared(unsigned* found, unsigned words, unsigned leave) {
  extern __shared__ volatile unsigned marked[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
    if (leave) marked[i] = 0x600D600Du;
    else if (marked[i] == 0x600D600Du) atomicAdd(found, 1u);
  }
}
