__global__ void swish(const float* x, float* out, int n, int d) {
    for (int k = threadIdx.x; k < d; k += 256) {
        long long i = blockIdx.x * (long long)d + k;
        out[i] = i > 1 << 20 ? x[i] : x[i] / (1.0f + expf(-x[i]));
    }
}
