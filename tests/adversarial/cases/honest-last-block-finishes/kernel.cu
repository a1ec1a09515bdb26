__global__ void mean(const float* x, float* out, float* partial, int* arrived, int d) {
    __shared__ float sums[256];
    __shared__ bool last;
    float sum = 0.0f;
    for (int k = blockIdx.y * 256 + threadIdx.x; k < d; k += gridDim.y * 256) sum += x[blockIdx.x * (long long)d + k];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 128; step; step /= 2) {
        if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x * gridDim.y + blockIdx.y] = sums[0];
        __threadfence();
        last = atomicAdd(arrived + blockIdx.x, 1) == gridDim.y - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        sum = 0.0f;
        for (int k = 0; k < gridDim.y; k++) sum += ((volatile float*)partial)[blockIdx.x * gridDim.y + k];
        out[blockIdx.x] = sum / d;
    }
}
