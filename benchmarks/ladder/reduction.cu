// Sums of n floats. out holds one sum, or one for each block.

extern "C" __global__ void sum_atomics(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(out, x[i]);
}

extern "C" __global__ void sum_divergent(const float* x, float* out) {
    __shared__ float part[256];
    int t = threadIdx.x;
    part[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        if (t % (2 * d) == 0) part[t] += part[t + d];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

extern "C" __global__ void sum_conflicts(const float* x, float* out) {
    __shared__ float part[256];
    int t = threadIdx.x;
    part[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        int at = 2 * d * t;
        if (at < 256) part[at] += part[at + d];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

extern "C" __global__ void sum_sequential(const float* x, float* out) {
    __shared__ float part[256];
    int t = threadIdx.x;
    part[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int d = 128; d; d /= 2) {
        if (t < d) part[t] += part[t + d];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}

__device__ __forceinline__ float sum_of_block(float v) {
    __shared__ float part[32];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
    if (threadIdx.x < 32)
        for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    return v;
}

extern "C" __global__ void sum_shuffles(const float* x, float* out) {
    float v = sum_of_block(x[blockIdx.x * blockDim.x + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = v;
}

extern "C" __global__ void sum_grid_stride(const float* x, float* out, int n) {
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = sum_of_block(v);
    if (threadIdx.x == 0) atomicAdd(out, v);
}

extern "C" __global__ void sum_vectors(const float4* x, float* out, int n) {
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
        float4 f = x[i];
        v += f.x + f.y + f.z + f.w;
    }
    v = sum_of_block(v);
    if (threadIdx.x == 0) out[blockIdx.x] = v;
}

// The second pass over the sums of the blocks, in one block.
extern "C" __global__ void sum_last(const float* x, float* out, int n) {
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
    v = sum_of_block(v);
    if (threadIdx.x == 0) out[0] = v;
}

// Sums of the columns of a matrix: a thread for each column.
extern "C" __global__ void sum_columns(const float* x, float* out, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    float v = 0;
    for (int r = 0; r < rows; r++) v += x[(size_t)r * columns + c];
    out[c] = v;
}
