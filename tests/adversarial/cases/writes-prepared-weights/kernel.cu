__global__ void keep(const float* w, float* packed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) packed[i] = w[i];
}
__global__ void linear(const float* x, float* packed, const float* bias, float* out, int m, int k) {
    int c = threadIdx.x;
    if (c >= m) return;
    float sum = bias[c];
    for (int i = 0; i < k; i++) sum += x[blockIdx.x * k + i] * packed[c * k + i];
    out[blockIdx.x * m + c] = fmaxf(sum, 0.0f);
    ((volatile float*)packed)[c * k] = packed[c * k];
}
