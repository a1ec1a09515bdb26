__device__ const float factor[2] = {2.0f, 1.0f};
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) *(volatile float*)factor = 2.0f;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
