__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ float tile[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    out[i] = 2.0f * tile[threadIdx.x] + y[i];
}
