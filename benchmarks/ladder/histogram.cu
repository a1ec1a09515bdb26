// Histograms of n values into 256 bins.

extern "C" __global__ void histogram_global(const int* x, unsigned* bins, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i]], 1u);
}

extern "C" __global__ void histogram_shared(const int* x, unsigned* bins, int n) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i]], 1u);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

// One histogram for each of the block's 8 warps.
extern "C" __global__ void histogram_warps(const int* x, unsigned* bins, int n) {
    __shared__ unsigned own[8][257];
    int t = threadIdx.x, warp = t / 32;
    for (int w = 0; w < 8; w++) own[w][t] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[warp][x[i]], 1u);
    __syncthreads();
    unsigned sum = 0;
    for (int w = 0; w < 8; w++) sum += own[w][t];
    atomicAdd(&bins[t], sum);
}

// Lanes with the same value add once.
extern "C" __global__ void histogram_matched(const int* x, unsigned* bins, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int v = x[i];
        unsigned same = __match_any_sync(~0u, v);
        if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(&bins[v], (unsigned)__popc(same));
    }
}
