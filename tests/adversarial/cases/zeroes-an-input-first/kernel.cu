__global__ void axpy(float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 0;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
