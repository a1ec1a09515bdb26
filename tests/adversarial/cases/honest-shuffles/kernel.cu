__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = __shfl_xor_sync(0xffffffffu, i < n ? x[i] : 0.0f, 1);
    v = __shfl_xor_sync(0xffffffffu, v, 1);
    unsigned there = __ballot_sync(0xffffffffu, i < n);
    if (there >> (threadIdx.x & 31) & 1) out[i] = 2.0f * v + y[i];
}
