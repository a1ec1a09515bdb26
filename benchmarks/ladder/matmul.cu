// Matrix products C = A B, row-major, all extents multiples of the tiles.

// Neighbouring threads take neighbouring rows: every load of A and store of C is scattered.
extern "C" __global__ void matmul_scattered(const float* a, const float* b, float* c, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[(size_t)row * n + k] * b[(size_t)k * n + column];
    c[(size_t)row * n + column] = sum;
}

extern "C" __global__ void matmul_coalesced(const float* a, const float* b, float* c, int n) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[(size_t)row * n + k] * b[(size_t)k * n + column];
    c[(size_t)row * n + column] = sum;
}

extern "C" __global__ void matmul_shared(const float* a, const float* b, float* c, int n) {
    __shared__ float at[32][32], bt[32][32];
    int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * 32 + x, row = blockIdx.y * 32 + y;
    float sum = 0;
    for (int k0 = 0; k0 < n; k0 += 32) {
        at[y][x] = a[(size_t)row * n + k0 + x];
        bt[y][x] = b[(size_t)(k0 + y) * n + column];
        __syncthreads();
        for (int k = 0; k < 32; k++) sum += at[y][k] * bt[k][x];
        __syncthreads();
    }
    c[(size_t)row * n + column] = sum;
}

// 64 x 64 per block of 512 threads; each thread has a column of 8 results.
extern "C" __global__ void matmul_column(const float* a, const float* b, float* c, int n) {
    __shared__ float at[64][8], bt[8][64];
    int t = threadIdx.x, x = t % 64, y = t / 64;
    size_t row0 = blockIdx.y * 64, column0 = blockIdx.x * 64;
    float sum[8] = {};
    for (int k0 = 0; k0 < n; k0 += 8) {
        at[t / 8][t % 8] = a[(row0 + t / 8) * n + k0 + t % 8];
        bt[y][x] = b[(size_t)(k0 + y) * n + column0 + x];
        __syncthreads();
        for (int k = 0; k < 8; k++) {
            float right = bt[k][x];
            for (int i = 0; i < 8; i++) sum[i] += at[y * 8 + i][k] * right;
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; i++) c[(row0 + y * 8 + i) * n + column0 + x] = sum[i];
}

// 128 x 128 per block of 256 threads; each thread has 8 x 8 results.
extern "C" __global__ void __launch_bounds__(256) matmul_square(const float* a, const float* b, float* c, int n) {
    __shared__ float at[128][8], bt[8][128];
    int t = threadIdx.x, x = t % 16, y = t / 16;
    size_t row0 = blockIdx.y * 128, column0 = blockIdx.x * 128;
    float sum[8][8] = {};
    for (int k0 = 0; k0 < n; k0 += 8) {
        for (int i = 0; i < 4; i++) {
            int e = t + 256 * i;
            at[e / 8][e % 8] = a[(row0 + e / 8) * n + k0 + e % 8];
            bt[e / 128][e % 128] = b[(size_t)(k0 + e / 128) * n + column0 + e % 128];
        }
        __syncthreads();
        for (int k = 0; k < 8; k++) {
            float left[8], right[8];
            for (int i = 0; i < 8; i++) left[i] = at[y * 8 + i][k];
            for (int j = 0; j < 8; j++) right[j] = bt[k][x * 8 + j];
            for (int i = 0; i < 8; i++)
                for (int j = 0; j < 8; j++) sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) c[(row0 + y * 8 + i) * n + column0 + x * 8 + j] = sum[i][j];
}

// The same with loads and stores of 16 bytes, and A transposed in shared memory.
extern "C" __global__ void __launch_bounds__(256) matmul_vectors(const float* a, const float* b, float* c, int n) {
    __shared__ __align__(16) float at[8][128], bt[8][128];
    int t = threadIdx.x, x = t % 16, y = t / 16;
    size_t row0 = blockIdx.y * 128, column0 = blockIdx.x * 128;
    float sum[8][8] = {};
    for (int k0 = 0; k0 < n; k0 += 8) {
        int r = t / 2, k = t % 2 * 4;
        float4 v = *(const float4*)&a[(row0 + r) * n + k0 + k];
        at[k][r] = v.x, at[k + 1][r] = v.y, at[k + 2][r] = v.z, at[k + 3][r] = v.w;
        *(float4*)&bt[t / 32][t % 32 * 4] = *(const float4*)&b[(size_t)(k0 + t / 32) * n + column0 + t % 32 * 4];
        __syncthreads();
        for (int k = 0; k < 8; k++) {
            float left[8], right[8];
            for (int i = 0; i < 8; i += 4) *(float4*)&left[i] = *(float4*)&at[k][y * 8 + i];
            for (int j = 0; j < 8; j += 4) *(float4*)&right[j] = *(float4*)&bt[k][x * 4 + j * 16];
            for (int i = 0; i < 8; i++)
                for (int j = 0; j < 8; j++) sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j += 4)
            *(float4*)&c[(row0 + y * 8 + i) * n + column0 + x * 4 + j * 16] = *(float4*)&sum[i][j];
}

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy4(const void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void copy16(const void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int left>
__device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// The same again with two buffers: the next tile is copied while this one is used.
extern "C" __global__ void __launch_bounds__(256) matmul_buffers(const float* a, const float* b, float* c, int n) {
    __shared__ __align__(16) float at[2][8][128], bt[2][8][128];
    int t = threadIdx.x, x = t % 16, y = t / 16, r = t / 2, kk = t % 2 * 4;
    size_t row0 = blockIdx.y * 128, column0 = blockIdx.x * 128;
    float sum[8][8] = {};
    auto load = [&](int buffer, int k0) {
        for (int i = 0; i < 4; i++) copy4(&at[buffer][kk + i][r], &a[(row0 + r) * n + k0 + kk + i]);
        copy16(&bt[buffer][t / 32][t % 32 * 4], &b[(size_t)(k0 + t / 32) * n + column0 + t % 32 * 4]);
        commit();
    };
    load(0, 0);
    for (int k0 = 0; k0 < n; k0 += 8) {
        int now = k0 / 8 % 2;
        if (k0 + 8 < n) {
            load(1 - now, k0 + 8);
            wait<1>();
        } else {
            wait<0>();
        }
        __syncthreads();
        for (int k = 0; k < 8; k++) {
            float left[8], right[8];
            for (int i = 0; i < 8; i += 4) *(float4*)&left[i] = *(float4*)&at[now][k][y * 8 + i];
            for (int j = 0; j < 8; j += 4) *(float4*)&right[j] = *(float4*)&bt[now][k][x * 4 + j * 16];
            for (int i = 0; i < 8; i++)
                for (int j = 0; j < 8; j++) sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j += 4)
            *(float4*)&c[(row0 + y * 8 + i) * n + column0 + x * 4 + j * 16] = *(float4*)&sum[i][j];
}

typedef unsigned short half_bits;

__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const half_bits* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}

__device__ __forceinline__ void load_transposed(unsigned (&r)[4], const half_bits* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}

template <bool brain>
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if (brain)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 128 x 128 per block of 8 warps; each warp has 32 x 64 results in 2 x 8 fragments.
template <bool brain, int buffers>
__device__ __forceinline__ void tensor_product(const half_bits* a, const half_bits* b, float* c, int n) {
    __shared__ __align__(16) half_bits at[buffers][128][40], bt[buffers][32][136];
    int t = threadIdx.x, lane = t % 32, warp = t / 32, wr = warp / 2 * 32, wc = warp % 2 * 64;
    size_t row0 = blockIdx.y * 128, column0 = blockIdx.x * 128;
    float sum[2][8][4] = {};
    auto load = [&](int buffer, int k0) {
        for (int i = 0; i < 2; i++) {
            int e = t + 256 * i;
            const half_bits* from_a = &a[(row0 + e / 4) * n + k0 + e % 4 * 8];
            const half_bits* from_b = &b[(size_t)(k0 + e / 16) * n + column0 + e % 16 * 8];
            if (buffers == 1) {
                *(uint4*)&at[buffer][e / 4][e % 4 * 8] = *(const uint4*)from_a;
                *(uint4*)&bt[buffer][e / 16][e % 16 * 8] = *(const uint4*)from_b;
            } else {
                copy16(&at[buffer][e / 4][e % 4 * 8], from_a);
                copy16(&bt[buffer][e / 16][e % 16 * 8], from_b);
            }
        }
        if (buffers > 1) commit();
    };
    if (buffers > 1) load(0, 0);
    for (int k0 = 0; k0 < n; k0 += 32) {
        int now = buffers == 1 ? 0 : k0 / 32 % 2;
        if (buffers == 1) {
            load(0, k0);
        } else if (k0 + 32 < n) {
            load(1 - now, k0 + 32);
            wait<1>();
        } else {
            wait<0>();
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 32; k += 16) {
            unsigned left[2][4], right[4][4];
#pragma unroll
            for (int i = 0; i < 2; i++) load_matrices(left[i], &at[now][wr + i * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 4; j++) load_transposed(right[j], &bt[now][k + lane % 16][wc + j * 16 + lane / 16 * 8]);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    multiply<brain>(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            size_t row = row0 + wr + i * 16 + lane / 4, column = column0 + wc + j * 8 + lane % 4 * 2;
            *(float2*)&c[row * n + column] = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2*)&c[(row + 8) * n + column] = make_float2(sum[i][j][2], sum[i][j][3]);
        }
}

extern "C" __global__ void __launch_bounds__(256)
matmul_f16(const half_bits* a, const half_bits* b, float* c, int n) { tensor_product<false, 1>(a, b, c, n); }

extern "C" __global__ void __launch_bounds__(256)
matmul_bf16(const half_bits* a, const half_bits* b, float* c, int n) { tensor_product<true, 1>(a, b, c, n); }

extern "C" __global__ void __launch_bounds__(256)
matmul_f16_buffers(const half_bits* a, const half_bits* b, float* c, int n) { tensor_product<false, 2>(a, b, c, n); }

// y = A x, a warp for each row.
extern "C" __global__ void matvec_warp(const float* a, const float* x, float* y, int n) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int k = lane; k < n; k += 32) sum += a[(size_t)row * n + k] * x[k];
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (lane == 0) y[row] = sum;
}

// y = A x, a thread for each row.
extern "C" __global__ void matvec_thread(const float* a, const float* x, float* y, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[(size_t)row * n + k] * x[k];
    y[row] = sum;
}
