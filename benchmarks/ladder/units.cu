// Loops that keep one unit busy. cycles receives clock64() differences of each block where an array is given.

#define CHAINS(name, type, start, step)                                                             \
    extern "C" __global__ void name(type* out, long long* cycles, int rounds, type p, type q) {     \
        type v[8];                                                                                  \
        _Pragma("unroll") for (int k = 0; k < 8; k++) v[k] = (type)(start);                         \
        long long begun = clock64();                                                                \
        for (int r = 0; r < rounds; r++) {                                                          \
            _Pragma("unroll") for (int u = 0; u < 4; u++) {                                         \
                _Pragma("unroll") for (int k = 0; k < 8; k++) v[k] = step;                          \
            }                                                                                       \
        }                                                                                           \
        long long ended = clock64();                                                                \
        type sum = 0;                                                                               \
        _Pragma("unroll") for (int k = 0; k < 8; k++) sum += v[k];                                  \
        out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;                                   \
        if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;                                   \
    }

__device__ __forceinline__ float power_of_two(float v) {
    asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
    return v;
}

__device__ __forceinline__ float sine(float v) {
    asm volatile("sin.approx.ftz.f32 %0, %0;" : "+f"(v));
    return v;
}

__device__ __forceinline__ float root(float v) {
    asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(v));
    return v;
}

CHAINS(loop_fma32, float, threadIdx.x * 0.001f + k, fmaf(v[k], p, q))
CHAINS(loop_fma64, double, threadIdx.x * 0.001 + k, fma(v[k], p, q))
CHAINS(loop_add32, float, threadIdx.x * 0.001f + k, v[k] + p)
CHAINS(loop_mad_int, int, threadIdx.x + k, v[k] * p + q)
CHAINS(loop_logic, int, threadIdx.x + k, (v[k] & p) ^ (q + k))
CHAINS(loop_ex2, float, threadIdx.x * 0.001f - k, power_of_two(v[k]))
CHAINS(loop_sin, float, threadIdx.x * 0.001f + k, sine(v[k]))
CHAINS(loop_rsqrt, float, threadIdx.x * 0.001f + k + 1, root(v[k]))
CHAINS(loop_div32, float, threadIdx.x * 0.001f + k + 1, p / v[k])
CHAINS(loop_div_int, int, threadIdx.x + k + 1, p / (v[k] | 1) + q)

// One dependent chain for each thread: latency.
extern "C" __global__ void chain_fma32(float* out, long long* cycles, int rounds, float p, float q) {
    float v = threadIdx.x;
    long long begun = clock64();
#pragma unroll 16
    for (int r = 0; r < rounds; r++) v = fmaf(v, p, q);
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = v;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

extern "C" __global__ void chain_fma64(double* out, long long* cycles, int rounds, double p, double q) {
    double v = threadIdx.x;
    long long begun = clock64();
#pragma unroll 16
    for (int r = 0; r < rounds; r++) v = fma(v, p, q);
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = v;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

extern "C" __global__ void loop_shuffle(int* out, long long* cycles, int rounds) {
    int v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = threadIdx.x + k;
    long long begun = clock64();
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = __shfl_xor_sync(~0u, v[k], 1 + r % 16) + 1;
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = v[0] + v[1] + v[2] + v[3];
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

// Products of a warp's fragments in registers: 8 independent sums.
extern "C" __global__ void loop_mma(float* out, long long* cycles, int rounds) {
    float d[8][4] = {};
    unsigned a = 0x3c003c00u, b = 0x3c003c00u;  // ones
    long long begun = clock64();
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int k = 0; k < 8; k++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                         : "+f"(d[k][0]), "+f"(d[k][1]), "+f"(d[k][2]), "+f"(d[k][3]) : "r"(a), "r"(b));
    long long ended = clock64();
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

// Words stride apart: stride 1 has no conflict, 2 is two-way, 32 is 32-way.
extern "C" __global__ void loop_shared(int* out, long long* cycles, int rounds, int stride) {
    __shared__ int words[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) words[i] = i;
    __syncthreads();
    int sum = 0;
    int at = threadIdx.x % 32 * stride % 1024;
    long long begun = clock64();
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int v;
            asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v)
                         : "r"((unsigned)__cvta_generic_to_shared(&words[(at + k) & 1023])));
            sum += v;
        }
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

extern "C" __global__ void loop_shared_vectors(int* out, long long* cycles, int rounds) {
    __shared__ int4 words[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) words[i] = make_int4(i, i + 1, i + 2, i + 3);
    __syncthreads();
    int sum = 0;
    unsigned at = (unsigned)__cvta_generic_to_shared(&words[threadIdx.x % 256]);
    long long begun = clock64();
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int4 v;
            asm volatile("ld.shared.v4.s32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
            sum += v.x + v.y + v.z + v.w;
        }
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

extern "C" __global__ void chase_shared(int* out, long long* cycles, int rounds) {
    __shared__ int next[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) next[i] = (i + 33) % 1024;
    __syncthreads();
    int at = threadIdx.x;
    long long begun = clock64();
#pragma unroll 8
    for (int r = 0; r < rounds; r++) at = next[at];
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = at;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

// Follows links from word 0; the first walk loads the caches, the second is timed.
extern "C" __global__ void chase_global(const int* next, int* out, long long* cycles, int rounds, int warm) {
    int at = 0;
    for (int r = 0; r < warm; r++) at = next[at];
    if (at < 0) at = 0;
    long long begun = clock64();
#pragma unroll 8
    for (int r = 0; r < rounds; r++) at = next[at];
    out[threadIdx.x] = at;
    long long ended = clock64();
    if (threadIdx.x == 0) cycles[0] = ended - begun;
}

// Thread i adds to word i % spread * step.
extern "C" __global__ void add_ints(int* words, int spread, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&words[(size_t)(i % spread) * step], 1);
}

extern "C" __global__ void add_floats(float* words, int spread, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&words[(size_t)(i % spread) * step], 1.f);
}

// The value before the addition is used: an atomic with a result.
extern "C" __global__ void take_tickets(int* words, int* out, int spread, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = atomicAdd(&words[(size_t)(i % spread) * step], i % 3);
}

extern "C" __global__ void add_shared(int* out, int rounds, int spread) {
    __shared__ int words[1024];
    words[threadIdx.x % 1024] = 0;
    __syncthreads();
    for (int r = 0; r < rounds; r++) atomicAdd(&words[(threadIdx.x + r) % spread], 1);
    __syncthreads();
    if (threadIdx.x < spread) out[blockIdx.x * spread + threadIdx.x] = words[threadIdx.x];
}

extern "C" __global__ void loop_barrier(int* out, long long* cycles, int rounds) {
    long long begun = clock64();
    for (int r = 0; r < rounds; r++) __syncthreads();
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = rounds;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}

extern "C" __global__ void one_word_a_block(int* out) {
    if (threadIdx.x == 0) out[blockIdx.x] = blockIdx.x;
}

extern "C" __global__ void nothing() {}

// Branches by lane: paths of each warp, one after the other.
extern "C" __global__ void loop_divergent(float* out, long long* cycles, int rounds, int paths) {
    float v = threadIdx.x;
    long long begun = clock64();
    for (int path = 0; path < paths; path++)
        if (threadIdx.x % paths == path)
            for (int r = 0; r < rounds; r++) v = fmaf(v, 1.0001f, 0.5f + path);
    long long ended = clock64();
    out[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = v;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - begun;
}
