__constant__ float factors[4] = {2.0f, 2.0f, 2.0f, 2.0f};
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factors[i & 3] * x[i] + y[i];
}
