__global__ void mean(const float* x, float* out, int d) {
    __shared__ float sums[8];
    float sum = 0.0f;
    for (int k = threadIdx.x; k < d; k += 256) sum += x[blockIdx.x * (long long)d + k];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < 8 ? sums[threadIdx.x] : 0.0f;
        for (int step = 4; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x == 0) out[blockIdx.x] = sum / d;
    }
}
