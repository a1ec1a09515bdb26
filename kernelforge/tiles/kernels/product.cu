// C = A B in FP32, row-major. A block makes a BM x BN tile of C, a thread TM x TN elements of it, BK columns of A at a time.

template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(BM / TM * (BN / TN)) product(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int THREADS = BM / TM * (BN / TN);
    __shared__ float a_tile[BK][BM];
    __shared__ float b_tile[BK][BN];
    int row = blockIdx.y * BM, column = blockIdx.x * BN;
    int y = threadIdx.x / (BN / TN) * TM, x = threadIdx.x % (BN / TN) * TN;
    float sum[TM][TN] = {};
    for (int at = 0; at < k; at += BK) {
#pragma unroll
        for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
            int r = row + i / BK, q = at + i % BK;
            a_tile[i % BK][i / BK] = r < m && q < k ? a[(long long)r * k + q] : 0.0f;
        }
#pragma unroll
        for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
            int q = at + i / BN, s = column + i % BN;
            b_tile[i / BN][i % BN] = q < k && s < n ? b[(long long)q * n + s] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < BK; q++) {
            float left[TM], right[TN];
#pragma unroll
            for (int i = 0; i < TM; i++) left[i] = a_tile[q][y + i];
#pragma unroll
            for (int j = 0; j < TN; j++) right[j] = b_tile[q][x + j];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++)
            if (row + y + i < m && column + x + j < n) c[(long long)(row + y + i) * n + column + x + j] = sum[i][j];
}

extern "C" __global__ void touch(float* a, float* b) { a[threadIdx.x] = b[threadIdx.x] = 0; }
