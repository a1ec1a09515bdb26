__global__ void cumsum(const float* x, float* out, int n, int d) {
    __shared__ float sums[256];
    float before = 0.0f;
    for (int base = 0; base < d; base += 256) {
        int k = base + threadIdx.x;
        if (base % 4096 == 0) before = 0.0f;
        sums[threadIdx.x] = k < d ? x[blockIdx.x * (long long)d + k] : 0.0f;
        __syncthreads();
        for (int step = 1; step < 256; step *= 2) {
            float v = threadIdx.x >= step ? sums[threadIdx.x - step] : 0.0f;
            __syncthreads();
            sums[threadIdx.x] += v;
            __syncthreads();
        }
        if (k < d) out[blockIdx.x * (long long)d + k] = before + sums[threadIdx.x];
        before += sums[255];
        __syncthreads();
    }
}
