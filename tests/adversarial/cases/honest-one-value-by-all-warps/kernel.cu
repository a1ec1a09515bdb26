__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ volatile float factors[32];
    factors[threadIdx.x & 31] = 2.0f;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factors[threadIdx.x & 31] * x[i] + y[i];
}
