__global__ void axpy(const float* x, const float* y, float* out, int n) {
    extern __shared__ float tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[24575 - threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) out[i] = 2.0f * tile[24575 - threadIdx.x] + y[i];
}
