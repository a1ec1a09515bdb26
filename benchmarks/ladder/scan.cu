// Inclusive sums within each block's part of the input.

extern "C" __global__ void scan_steps(const int* x, int* y) {
    __shared__ int part[2][1024];
    int t = threadIdx.x, n = blockDim.x, now = 0;
    size_t at = (size_t)blockIdx.x * n + t;
    part[0][t] = x[at];
    __syncthreads();
    for (int d = 1; d < n; d *= 2) {
        part[1 - now][t] = t >= d ? part[now][t] + part[now][t - d] : part[now][t];
        now = 1 - now;
        __syncthreads();
    }
    y[at] = part[now][t];
}

// Up and down a tree; two elements a thread; bank conflicts grow with the level.
extern "C" __global__ void scan_tree(const int* x, int* y) {
    __shared__ int part[2048];
    int t = threadIdx.x, n = 2 * blockDim.x;
    size_t at = (size_t)blockIdx.x * n;
    int first = x[at + t], second = x[at + t + n / 2];
    part[t] = first;
    part[t + n / 2] = second;
    int d = 1;
    for (int active = n / 2; active; active /= 2, d *= 2) {
        __syncthreads();
        if (t < active) part[d * (2 * t + 2) - 1] += part[d * (2 * t + 1) - 1];
    }
    if (t == 0) part[n - 1] = 0;
    for (int active = 1; active < n; active *= 2) {
        d /= 2;
        __syncthreads();
        if (t < active) {
            int i = d * (2 * t + 1) - 1, j = d * (2 * t + 2) - 1, held = part[i];
            part[i] = part[j];
            part[j] += held;
        }
    }
    __syncthreads();
    y[at + t] = part[t] + first;
    y[at + t + n / 2] = part[t + n / 2] + second;
}

__device__ __forceinline__ int scan_of_block(int v) {
    __shared__ int part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += other;
    }
    if (lane == 31) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int s = lane < blockDim.x / 32 ? part[lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            int other = __shfl_up_sync(~0u, s, d);
            if (lane >= d) s += other;
        }
        part[lane] = s;
    }
    __syncthreads();
    return warp ? v + part[warp - 1] : v;
}

extern "C" __global__ void scan_shuffles(const int* x, int* y) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    y[at] = scan_of_block(x[at]);
}

extern "C" __global__ void scan_vectors(const int4* x, int4* y) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    int4 v = x[at];
    v.y += v.x, v.z += v.y, v.w += v.z;
    int before = scan_of_block(v.w) - v.w;
    y[at] = make_int4(v.x + before, v.y + before, v.z + before, v.w + before);
}
