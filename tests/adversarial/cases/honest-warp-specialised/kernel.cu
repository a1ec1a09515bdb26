__global__ void axpy(const float* x, const float* y, float* out, int n) {
    __shared__ float tile[96];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, step = gridDim.x * 96;
    for (int base = blockIdx.x * 96; base < n; base += step) {
        if (warp == 0) {
            for (int k = lane; k < 96; k += 32) tile[k] = base + k < n ? x[base + k] : 0.0f;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
            asm volatile("bar.sync 2, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            int i = base + threadIdx.x - 32;
            if (i < n) out[i] = 2.0f * tile[threadIdx.x - 32] + y[i];
            asm volatile("bar.arrive 2, 128;" ::: "memory");
        }
    }
}
