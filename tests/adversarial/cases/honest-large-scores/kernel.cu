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
__global__ void scores(const float* a, const float* b, float* out, int m, int n, int k, float scale) {
    __shared__ float shared[256];
    
    float* row = out + blockIdx.x * (long long)n;
    float most = -INFINITY, sum = 0.0f;
    for (int c = threadIdx.x; c < n; c += 256) {
        float score = 0.0f;
        for (int i = 0; i < k; i++) score += a[blockIdx.x * k + i] * b[i * n + c];
        row[c] = score / scale;
        most = fmaxf(most, row[c]);
    }
    float top = largest(most, shared);
    for (int c = threadIdx.x; c < n; c += 256) sum += expf(row[c] - top);
    sum = summed(sum, shared);
    for (int c = threadIdx.x; c < n; c += 256) row[c] = expf(row[c] - top) / sum;
}
