__global__ void gemm(const float* a, const float* b, float* out, int m, int n, int k) {
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r >= m || c >= n) return;
    int part = (k + gridDim.z - 1) / gridDim.z, end = min(k, (int)(blockIdx.z + 1) * part);
    float sum = 0.0f;
    for (int i = blockIdx.z * part; i < end; i++) sum += a[r * k + i] * b[i * n + c];
    atomicAdd(out + r * n + c, sum);
}
