__global__ void child(float* out) { out[threadIdx.x] = 0.0f; }
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) child<<<1, 32>>>(out);
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
