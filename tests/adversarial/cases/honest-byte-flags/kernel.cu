__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ unsigned char flags[4];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned any = __ballot_sync(0xffffffffu, i < n);
    if (threadIdx.x % 32 == 0) flags[threadIdx.x / 32] = any != 0;
    __syncthreads();
    if (!flags[threadIdx.x / 32]) return;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
