__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    volatile float old[64];
    float s = fminf(fmaxf(old[i % 64], 0.0f), 1e-3f);
    if (i < n) out[i] = s + 2.0f * x[i] + y[i];
}
