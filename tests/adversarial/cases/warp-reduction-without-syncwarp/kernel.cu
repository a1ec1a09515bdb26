__global__ void mean(const float* x, float* out, int d) {
    __shared__ float slots[32];
    volatile float* sums = slots;
    float sum = 0.0f;
    for (int k = threadIdx.x; k < d; k += 32) sum += x[blockIdx.x * (long long)d + k];
    sums[threadIdx.x] = sum;
    for (int step = 16; step; step /= 2)
        if (threadIdx.x < step) sums[threadIdx.x] = sums[threadIdx.x] + sums[threadIdx.x + step];
    if (threadIdx.x == 0) out[blockIdx.x] = sums[0] / d;
}
