__global__ void totals(const float* x, float* sums, int d) {
    if (threadIdx.x) return;
    float sum = 0.0f;
    for (int k = blockIdx.x * 256; k < min(d, (int)(blockIdx.x + 1) * 256); k++) sum += x[blockIdx.y * d + k];
    sums[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}
__global__ void scan(float* sums, int tiles) {
    float before = 0.0f;
    for (int k = 0; k < tiles; k++) {
        float own = sums[blockIdx.x * tiles + k];
        sums[blockIdx.x * tiles + k] = before;
        before += own;
    }
}
__global__ void spread(const float* x, const float* sums, float* out, int d) {
    if (threadIdx.x) return;
    float sum = sums[blockIdx.y * gridDim.x + blockIdx.x];
    for (int k = blockIdx.x * 256; k < min(d, (int)(blockIdx.x + 1) * 256); k++) out[blockIdx.y * d + k] = sum += x[blockIdx.y * d + k];
}
