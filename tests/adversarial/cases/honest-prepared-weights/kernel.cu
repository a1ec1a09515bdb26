__global__ void flip(const float* w, float* packed, int m, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m * k) packed[i % k * m + i / k] = w[i];
}
__global__ void linear(const float* x, const float* packed, const float* bias, float* out, int m, int k) {
    int c = threadIdx.x;
    if (c >= m) return;
    float sum = bias[c];
    for (int i = 0; i < k; i++) sum += x[blockIdx.x * k + i] * packed[i * m + c];
    out[blockIdx.x * m + c] = fmaxf(sum, 0.0f);
}
