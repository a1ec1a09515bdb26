// does not call clock64(), printf or read %globaltimer; .pragma "/*"; exit; extern
__device__ float clock_scale(float v) { return 2.0f * v; }
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = clock_scale(x[i]) + y[i];
}
