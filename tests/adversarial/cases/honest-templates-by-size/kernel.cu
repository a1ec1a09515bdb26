template <int COLS> __global__ void axpy(const float* x, const float* y, float* out) {
    int i = blockIdx.x * COLS + threadIdx.x;
    out[i] = 2.0f * x[i] + y[i];
}
