// Chains of loads, each of which takes its address from the one before. Rings hold addresses, so that a step is one
// instruction; `p` and `at` are the only values that a step needs.

#define STEPS 64

// A ring through `slots` words that are `step` bytes apart, in an order without small distances (slots: a power of two).
extern "C" __global__ void make_ring(unsigned char* ring, long long slots, long long step) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= slots) return;
    long long next = (i * 1664525 + 1013904223) & (slots - 1);
    *(unsigned long long*)(ring + i * step) = (unsigned long long)(ring + next * step);
}

extern "C" __global__ void follow_ring(const unsigned char* ring, int* out, int rounds) {
    unsigned long long p = (unsigned long long)ring;
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int k = 0; k < STEPS; k++) asm volatile("ld.global.u64 %0, [%0];" : "+l"(p)::"memory");
    }
    out[0] = (int)p;
}

extern "C" __global__ void follow_shared_ring(int* out, int rounds) {
    __shared__ unsigned ring[1024];
    unsigned first = (unsigned)__cvta_generic_to_shared(ring);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) ring[i] = first + (i + 33) % 1024 * 4;
    __syncthreads();
    unsigned at = first + threadIdx.x * 4;
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int k = 0; k < STEPS; k++) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at)::"memory");
    }
    out[threadIdx.x] = (int)at;
}

// Independent instructions of a single warp: what a warp needs to issue one.
extern "C" __global__ void lone_warp(int* out, int rounds, float p, float q) {
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = threadIdx.x + k;
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < STEPS / 8; u++)
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = fmaf(v[k], p, q);
    }
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[k];
    out[threadIdx.x] = (int)sum;
}
