// Loads and stores that keep one level of the memory busy. Every loaded value is used, or the compiler drops the load.

#define BATCH 8

__device__ __forceinline__ float sum_of(const float4* v) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < BATCH; k++) sum += v[k].x + v[k].y + v[k].z + v[k].w;
    return sum;
}

// A store that never happens, and of which no compiler knows it.
__device__ __forceinline__ void use(float sum, int* out) {
    if (sum == -12345.678f) out[0] = 1;
}

extern "C" __global__ void touch(int* out) { out[threadIdx.x] = threadIdx.x; }

// A block reads BATCH * blockDim.x vectors that no other block reads.
extern "C" __global__ void read_once(const int* data, int* out) {
    const float4* own = (const float4*)data + (long long)blockIdx.x * BATCH * blockDim.x + threadIdx.x;
    float4 v[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) v[k] = own[k * blockDim.x];
    use(sum_of(v), out);
}

extern "C" __global__ void copy_once(const int* data, int* out) {
    long long first = (long long)blockIdx.x * BATCH * blockDim.x + threadIdx.x;
    int4 v[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) v[k] = ((const int4*)data)[first + k * blockDim.x];
#pragma unroll
    for (int k = 0; k < BATCH; k++) ((int4*)out)[first + k * blockDim.x] = v[k];
}

// A word of each `step` words.
extern "C" __global__ void read_sectors(const int* data, int* out, int step) {
    const int* own = data + ((long long)blockIdx.x * BATCH * blockDim.x + threadIdx.x) * step;
    int v[BATCH];
    int sum = 0;
#pragma unroll
    for (int k = 0; k < BATCH; k++) v[k] = own[(long long)k * blockDim.x * step];
#pragma unroll
    for (int k = 0; k < BATCH; k++) sum ^= v[k];
    if (sum == 0x1e3779b9) out[0] = sum;
}

// Every block reads the same `batches` * BATCH * blockDim.x vectors again and again, past the L1, from another batch on.
extern "C" __global__ void read_l2(const int* data, int* out, int rounds, int batches) {
    const float4* own = (const float4*)data + threadIdx.x;
    float sum = 0;
    for (int r = 0; r < rounds * batches; r++) {
        const float4* batch = own + (r + blockIdx.x) % batches * BATCH * blockDim.x;
        float4 v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v[k].x), "=f"(v[k].y), "=f"(v[k].z), "=f"(v[k].w)
                         : "l"(batch + k * blockDim.x));
        sum += sum_of(v);
    }
    use(sum, out);
}

// All warps of a block read the same BATCH * 32 vectors, which stay in the L1.
extern "C" __global__ void read_l1(const int* data, int* out, int rounds) {
    const float4* own = (const float4*)data + threadIdx.x % 32;
    float sum = 0;
    for (int r = 0; r < rounds; r++) {
        float4 v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            asm volatile("ld.global.ca.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v[k].x), "=f"(v[k].y), "=f"(v[k].z), "=f"(v[k].w)
                         : "l"(own + k * 32));
        sum += sum_of(v);
    }
    use(sum, out);
}

extern "C" __global__ void read_shared(int* out, int rounds) {
    __shared__ float4 data[BATCH * 32];
    for (int i = threadIdx.x; i < BATCH * 32; i += blockDim.x) data[i] = make_float4(i, i, i, i);
    __syncthreads();
    unsigned at = (unsigned)__cvta_generic_to_shared(&data[threadIdx.x % 32]);
    float sum = 0;
    for (int r = 0; r < rounds; r++) {
        float4 v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v[k].x), "=f"(v[k].y), "=f"(v[k].z), "=f"(v[k].w)
                         : "r"(at + k * 512));
        sum += sum_of(v);
    }
    use(sum, out);
}

// A load that the L1 answers, after which it sends on what stores began.
__device__ void load_between(const int* small) {
    int value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(small + threadIdx.x % 32) : "memory");
}

// A thread stores a word of a sector of its own, again and again.
extern "C" __global__ void store_words(int* out, const int* small, int rounds) {
    int* own = out + ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    for (int r = 0; r < rounds; r++) {
        asm volatile("st.global.u32 [%0], %1;" ::"l"(own), "r"(r) : "memory");
        load_between(small);
    }
}

// The same with complete sectors, half a sector by each thread.
extern "C" __global__ void store_sectors(int* out, const int* small, int rounds) {
    int4* own = (int4*)out + (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (int r = 0; r < rounds; r++) {
        asm volatile("st.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(own), "r"(r) : "memory");
        load_between(small);
    }
}
