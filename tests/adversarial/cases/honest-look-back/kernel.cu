__global__ void cumsum(const float* x, float* out, float* carry, int* done, int d) {
    __shared__ float sums[128];
    __shared__ float before;
    int tile = blockIdx.x, row = blockIdx.y, k = tile * 128 + threadIdx.x;
    sums[threadIdx.x] = k < d ? x[row * d + k] : 0.0f;
    __syncthreads();
    for (int step = 1; step < 128; step *= 2) {
        float v = threadIdx.x >= step ? sums[threadIdx.x - step] : 0.0f;
        __syncthreads();
        sums[threadIdx.x] += v;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        before = 0.0f;
        if (tile > 0) {
            while (atomicAdd(done + row * gridDim.x + tile - 1, 0) == 0) {}
            __threadfence();
            before = ((volatile float*)carry)[row * gridDim.x + tile - 1];
        }
        carry[row * gridDim.x + tile] = before + sums[127];
        __threadfence();
        atomicExch(done + row * gridDim.x + tile, 1);
    }
    __syncthreads();
    if (k < d) out[row * d + k] = before + sums[threadIdx.x];
}
