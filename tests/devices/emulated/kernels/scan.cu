// Prefix sums of a warp, a block and a grid, and what is built of them.
__device__ int warp_scan(int v) {
  for (int o = 1; o < 32; o *= 2) {
    int w = __shfl_up_sync(~0u, v, o);
    if ((threadIdx.x & 31) >= o) v += w;
  }
  return v;
}
__device__ int block_scan(int v, int* warps) {
  v = warp_scan(v);
  if ((threadIdx.x & 31) == 31) warps[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    int w = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    w = warp_scan(w);
    __syncwarp();
    if (threadIdx.x < blockDim.x / 32) warps[threadIdx.x] = w;
  }
  __syncthreads();
  return threadIdx.x < 32 ? v : v + warps[threadIdx.x / 32 - 1];
}

extern "C" __global__ void inclusive(const int* x, int* y) {
  __shared__ int warps[32];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = block_scan(x[i], warps);
}
extern "C" __global__ void exclusive_by_tree(const int* x, int* y) {  // Blelloch's up-sweep and down-sweep
  extern __shared__ int s[];
  int t = threadIdx.x, n = 2 * blockDim.x, d = 1;
  s[2 * t] = x[n * blockIdx.x + 2 * t];
  s[2 * t + 1] = x[n * blockIdx.x + 2 * t + 1];
  for (int half = n / 2; half; half >>= 1, d *= 2) {
    __syncthreads();
    if (t < half) s[d * (2 * t + 2) - 1] += s[d * (2 * t + 1) - 1];
  }
  if (t == 0) s[n - 1] = 0;
  for (int parts = 1; parts < n; parts *= 2) {
    d >>= 1;
    __syncthreads();
    if (t < parts) {
      int left = s[d * (2 * t + 1) - 1];
      s[d * (2 * t + 1) - 1] = s[d * (2 * t + 2) - 1];
      s[d * (2 * t + 2) - 1] += left;
    }
  }
  __syncthreads();
  y[n * blockIdx.x + 2 * t] = s[2 * t];
  y[n * blockIdx.x + 2 * t + 1] = s[2 * t + 1];
}
extern "C" __global__ void keep_positive(const int* x, int* y, int* kept) {
  __shared__ int warps[32];
  int v = x[threadIdx.x], at = block_scan(v > 0, warps);
  if (v > 0) y[at - 1] = v;
  if (threadIdx.x == blockDim.x - 1) *kept = at;
}
extern "C" __global__ void running_greatest(const float* x, float* y, int n) {
  float carried = -INFINITY;
  for (int from = 0; from < n; from += 32) {
    float v = from + threadIdx.x < n ? x[from + threadIdx.x] : -INFINITY;
    for (int o = 1; o < 32; o *= 2) {
      float w = __shfl_up_sync(~0u, v, o);
      if (threadIdx.x >= o) v = fmaxf(v, w);
    }
    v = fmaxf(v, carried);
    if (from + threadIdx.x < n) y[from + threadIdx.x] = v;
    carried = __shfl_sync(~0u, v, 31);
  }
}
extern "C" __global__ void segmented(const int* x, const unsigned char* first, int* y) {
  int t = threadIdx.x, v = x[t], f = first[t];
  for (int o = 1; o < 32; o *= 2) {
    int w = __shfl_up_sync(~0u, v, o), g = __shfl_up_sync(~0u, f, o);
    if (t >= o) {
      if (!f) v += w;
      f |= g;
    }
  }
  y[t] = v;
}
extern "C" __global__ void across_blocks(const int* x, int* y, volatile int* state, unsigned* next) {
  // Blocks take tickets and wait for the sum of the one before.
  __shared__ int warps[32], before, ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(next, 1u);
  __syncthreads();
  int i = ticket * blockDim.x + threadIdx.x, v = block_scan(x[i], warps);
  if (threadIdx.x == blockDim.x - 1) {
    int sum = 0;
    if (ticket) {
      while (!state[2 * ticket - 2]) {}
      __threadfence();
      sum = state[2 * ticket - 1];
    }
    state[2 * ticket + 1] = sum + v;
    __threadfence();
    state[2 * ticket] = 1;
    before = sum;
  }
  __syncthreads();
  y[i] = v + before;
}
extern "C" __global__ void linear_recurrence(const float* a, const float* b, float* h, int n) {
  // h[i] = a[i] * h[i - 1] + b[i]; pairs compose.
  float p = a[threadIdx.x], q = b[threadIdx.x];
  for (int o = 1; o < 32; o *= 2) {
    float p2 = __shfl_up_sync(~0u, p, o), q2 = __shfl_up_sync(~0u, q, o);
    if (threadIdx.x >= o) { q = p * q2 + q; p *= p2; }
  }
  if (threadIdx.x < n) h[threadIdx.x] = q;
}
