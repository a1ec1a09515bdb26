__global__ void softmax(const float* x, float* out, int d) {
    __shared__ float shared[256];
    const float* row = x + blockIdx.x * (long long)d;
    float most = -INFINITY, sum = 0.0f;
    for (int k = threadIdx.x; k < d; k += 256) {
        float v = row[k], up = fmaxf(most, v);
        sum = sum * expf(most - up) + expf(v - up);
        most = up;
    }
    shared[threadIdx.x] = most;
    __syncthreads();
    for (int step = 128; step; step /= 2) {
        if (threadIdx.x < step) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + step]);
        __syncthreads();
    }
    float top = shared[0];
    __syncthreads();
    shared[threadIdx.x] = most == -INFINITY ? 0.0f : sum * expf(most - top);
    __syncthreads();
    for (int step = 128; step; step /= 2) {
        if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
        __syncthreads();
    }
    float scale = 1.0f / shared[0];
    for (int k = threadIdx.x; k < d; k += 256) out[blockIdx.x * (long long)d + k] = expf(row[k] - top) * scale;
}
