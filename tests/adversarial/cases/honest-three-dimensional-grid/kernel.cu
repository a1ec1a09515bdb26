__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int i = block * 128 + (threadIdx.z * 4 + threadIdx.y) * 16 + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
