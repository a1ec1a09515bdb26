__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ float tile[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x, group = threadIdx.x / 64;
    tile[threadIdx.x ^ 32] = i < n ? x[i] : 0.0f;
    if (group == 0) asm volatile("bar.sync 1, 64;" ::: "memory");
    else asm volatile("bar.sync 2, 64;" ::: "memory");
    float mine = tile[threadIdx.x ^ 32];
    if (i < n) out[i] = 2.0f * mine + y[i];
}
