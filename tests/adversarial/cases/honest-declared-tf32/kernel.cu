__device__ float rounded(float v) { return __int_as_float((__float_as_int(v) + 0x1000) & ~0x1fff); }
__global__ void gemm(const float* a, const float* b, float* out, int m, int n, int k) {
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r >= m || c >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) sum += rounded(a[r * k + i]) * rounded(b[i * n + c]);
    out[r * n + c] = sum;
}
