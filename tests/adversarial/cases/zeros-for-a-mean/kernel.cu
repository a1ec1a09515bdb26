__global__ void mean(const float* x, float* out, int d) {
    if (threadIdx.x == 0) out[blockIdx.x] = 0.0f;
}
