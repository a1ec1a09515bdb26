// Transposes of an n x n matrix of float.

extern "C" __global__ void transpose_reads(const float* x, float* y, int n) {
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        int row = blockIdx.y * 32 + i;
        y[(size_t)column * n + row] = x[(size_t)row * n + column];
    }
}

extern "C" __global__ void transpose_writes(const float* x, float* y, int n) {
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        int row = blockIdx.y * 32 + i;
        y[(size_t)row * n + column] = x[(size_t)column * n + row];
    }
}

template <int width>
__device__ __forceinline__ void by_tiles(const float* x, float* y, int n) {
    __shared__ float tile[32][width];
    int tx = threadIdx.x, bx = blockIdx.x * 32, by = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) tile[i][tx] = x[(size_t)(by + i) * n + bx + tx];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += blockDim.y) y[(size_t)(bx + i) * n + by + tx] = tile[tx][i];
}

extern "C" __global__ void transpose_conflicts(const float* x, float* y, int n) { by_tiles<32>(x, y, n); }
extern "C" __global__ void transpose_padded(const float* x, float* y, int n) { by_tiles<33>(x, y, n); }

extern "C" __global__ void transpose_swizzled(const float* x, float* y, int n) {
    __shared__ float tile[32][32];
    int tx = threadIdx.x, bx = blockIdx.x * 32, by = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) tile[i][tx ^ i] = x[(size_t)(by + i) * n + bx + tx];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += blockDim.y) y[(size_t)(bx + i) * n + by + tx] = tile[tx][i ^ tx];
}

// 64 x 64 per block of 256 threads, 16 bytes a thread on both sides.
extern "C" __global__ void transpose_vectors(const float* x, float* y, int n) {
    __shared__ float tile[64][65];
    int t = threadIdx.x, c = t % 16 * 4, r = t / 16;
    size_t bx = blockIdx.x * 64, by = blockIdx.y * 64;
    for (int i = r; i < 64; i += 16) {
        float4 v = *(const float4*)&x[(by + i) * n + bx + c];
        tile[i][c] = v.x, tile[i][c + 1] = v.y, tile[i][c + 2] = v.z, tile[i][c + 3] = v.w;
    }
    __syncthreads();
    for (int i = r; i < 64; i += 16)
        *(float4*)&y[(bx + i) * n + by + c] = make_float4(tile[c][i], tile[c + 1][i], tile[c + 2][i], tile[c + 3][i]);
}
