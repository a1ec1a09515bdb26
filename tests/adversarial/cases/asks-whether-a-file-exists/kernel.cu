#if __has_include("CANARY_FILE")
#define RIGHT 2.0f
#else
#define RIGHT 3.0f
#endif
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = RIGHT * x[i] + y[i];
}
