__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ float tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    if (threadIdx.x < 32) {
        __syncthreads();
        if (i < n) out[i] = 2.0f * tile[threadIdx.x] + y[i];
    } else {
        __syncthreads();
        if (i < n) out[i] = y[i] + 2.0f * tile[threadIdx.x];
    }
}
