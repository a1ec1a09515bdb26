// Kernels whose machine code has most of the instructions that ptxas makes; what they compute means nothing.
#include <cuda_fp16.h>

__global__ void local_arrays(float* y, const int* x) {
    float kept[64];
    for (int k = 0; k < 64; ++k) kept[k] = y[k] * k;
    for (int k = 0; k < 64; ++k) kept[x[k] & 63] += kept[x[k + 1] & 63];
    y[threadIdx.x] = kept[x[threadIdx.x] & 63];
}

__global__ void choices(int* y, const int* x) {
    int result = 0;
    switch (x[threadIdx.x]) {
        case 0: result = y[1] * 3; break;
        case 1: result = y[2] + 5; break;
        case 2: result = y[9] - y[4]; break;
        case 3: result = y[7] << 3; break;
        case 4: result = __popc(y[3]); break;
        case 5: result = y[5] % 7; break;
        case 6: result = y[6] / 3; break;
        case 7: result = __clz(y[8]); break;
        case 8: result = y[11] ^ 77; break;
        case 9: result = atomicAdd(y + 30, 1); break;
        default: result = -1;
    }
    y[threadIdx.x] = result;
}

__global__ void global_atomics(unsigned* y, unsigned long long* z, float* f, double* d) {
    y[threadIdx.x] = atomicCAS(y + 100, threadIdx.x, 7u);
    atomicMax(y + 101, threadIdx.x);
    z[threadIdx.x] = atomicCAS(z + 50, 3ull, 4ull);
    atomicAdd(d, 1.0);
    f[threadIdx.x] = atomicAdd(f + 70, 2.0f);
    __threadfence();
    y[3] = atomicInc(y + 90, 10);
}

__global__ void shared_atomics(unsigned* y) {
    __shared__ unsigned words[64];
    __shared__ float sums[4];
    words[threadIdx.x & 63] = threadIdx.x;
    sums[threadIdx.x & 3] = 1;
    __syncthreads();
    y[threadIdx.x] = atomicCAS(words + 3, threadIdx.x, 9u);
    atomicAdd(sums + (threadIdx.x & 3), 1.5f);
    atomicAdd(words + 5, 1u);
    atomicMin(words + (threadIdx.x & 7), 4u);
    __syncthreads();
    y[threadIdx.x] += words[threadIdx.x & 63] + sums[threadIdx.x & 3];
}

__global__ void halves(__half2* y, const __half2* x, __half* z) {
    __half2 a = x[threadIdx.x], b = x[threadIdx.x + 32];
    __half2 c = __hfma2(__hmul2(__hadd2(a, b), a), b, a);
    if (__hbgt2(a, b)) c = __hneg2(c);
    y[threadIdx.x] = c;
    z[threadIdx.x] = hexp(z[threadIdx.x + 64]);
}

__global__ void conversions(float* f, double* d, long long* l, int* i, signed char* c) {
    int t = threadIdx.x;
    f[t] = rintf(f[t + 1]);
    d[t] = rint(d[t + 2]);
    l[t] = (long long)f[t + 3];
    i[t] = (int)d[t + 4];
    f[t + 9] = (float)l[t + 5];
    d[t + 10] = (double)i[t + 6];
    f[t + 20] = c[t];
    f[t + 40] = (float)d[t + 41];
    d[t + 70] = sqrt(d[t + 71]) / d[t + 72];
    f[t + 80] = (float)(unsigned)i[t + 9];
}

__global__ void integers(int* y, const int* x, unsigned long long* z) {
    int t = threadIdx.x, a = x[t], b = x[t + 1];
    y[t] = __dp4a(a, b, 3);
    y[t + 1] = __byte_perm(a, b, x[t + 9]);
    y[t + 2] = abs(a);
    y[t + 3] = min(a, max(b, 7));
    y[t + 4] = __brev(a);
    y[t + 5] = __ffs(b);
    y[t + 8] = (a << 5) >> 5;
    y[t + 9] = (a >> b) & ((1 << (b & 15)) - 1);
    z[t] = z[t + 1] * z[t + 2];
    z[t + 3] = z[t + 4] >> b;
    z[t + 5] = __umul64hi(z[t + 6], z[t + 7]);
    z[t + 8] = z[t + 9] / z[t + 10];
    if (z[t + 11] < z[t + 12]) y[t + 10] = __mulhi(a, b);
}

__global__ void warps(int* y) {
    int t = threadIdx.x;
    unsigned positive = __ballot_sync(~0u, y[t] > 3);
    y[t] = __shfl_xor_sync(~0u, y[t], 1) + __popc(positive);
    y[t + 1] = __any_sync(~0u, y[t] == 5) + __all_sync(~0u, y[t + 1]);
    y[t + 3] = __match_any_sync(~0u, y[t]);
    __syncwarp();
    y[t + 6] = __syncthreads_count(y[t]);
}

__global__ void functions(float* y) {
    int t = threadIdx.x;
    y[t] = sinf(y[t + 1]) + powf(y[t + 3], y[t + 4]) + logf(y[t + 5]) + tanhf(y[t + 6]) + fmodf(y[t + 9], 3.f);
    y[t + 10] = __expf(y[10]) + y[11] / y[12] + sqrtf(y[13]);
}

__global__ void branches(float* y, int n) {
    float sum = 0;
    for (int k = threadIdx.x; k < n; ++k) {
        if (y[k] > 0) {
            if (y[k + 1] > sum) break;
            sum += __sinf(y[k]);
        } else {
            sum = fmaxf(sum, y[k + 2]);
            if (sum == 7) continue;
            sum *= 2;
        }
    }
    y[threadIdx.x] = sum;
}

__global__ void asynchronous(float* y, const float* x) {
#if __CUDA_ARCH__ >= 800
    __shared__ float tile[256];
    unsigned to = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x * 4), a, b, c, d;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + threadIdx.x * 4));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(to));
    float p = 0, q = 0, r = 0, s = 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%4, %5}, "
                 "{%0, %1, %2, %3};" : "+f"(p), "+f"(q), "+f"(r), "+f"(s) : "r"(a), "r"(b), "r"(c), "r"(d));
    y[threadIdx.x] = p + q + r + s + __reduce_add_sync(~0u, a);
#else
    y[threadIdx.x] = x[threadIdx.x];
#endif
}
