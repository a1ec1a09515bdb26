__global__ void gemm(const float* a, const float* b, float* out, int m, int n, int k) {
    __shared__ float ta[16][17], tb[16][17];
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 16) {
        ta[threadIdx.y][threadIdx.x] = r < m && base + threadIdx.x < k ? a[r * k + base + threadIdx.x] : 0.0f;
        tb[threadIdx.y][threadIdx.x] = c < n && base + threadIdx.y < k ? b[(base + threadIdx.y) * n + c] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
        __syncthreads();
    }
    if (r < m && c < n) out[r * n + c] = sum;
}
