// Many values to few: by shuffles, by trees in shared memory, by one warp per row.
__device__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

extern "C" __global__ void sum_by_tree(const int* x, int* y) {
  __shared__ int s[256];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (int d = 128; d; d >>= 1) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = s[0];
}
extern "C" __global__ void sum_of_rows(const float* x, float* y, int columns) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  float sum = 0;
  for (int c = threadIdx.x & 31; c < columns; c += 32) sum += x[row * columns + c];
  sum = warp_sum(sum);
  if ((threadIdx.x & 31) == 0) y[row] = sum;
}
extern "C" __global__ void sum_of_columns(const float* x, float* y, int rows, int columns) {
  __shared__ float part[8][33];
  int c = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int r = threadIdx.y; r < rows; r += 8) if (c < columns) sum += x[r * columns + c];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && c < columns) {
    for (int k = 1; k < 8; k++) sum += part[k][threadIdx.x];
    y[c] = sum;
  }
}
extern "C" __global__ void position_of_the_least(const float* x, int* at, int n) {
  float best = INFINITY;
  int where = 0x7fffffff;
  for (int i = threadIdx.x; i < n; i += 32)
    if (x[blockIdx.x * n + i] < best) { best = x[blockIdx.x * n + i]; where = i; }
  for (int o = 16; o; o >>= 1) {
    float v = __shfl_down_sync(~0u, best, o);
    int w = __shfl_down_sync(~0u, where, o);
    if (v < best || (v == best && w < where)) { best = v; where = w; }
  }
  if (threadIdx.x == 0) at[blockIdx.x] = where;
}
extern "C" __global__ void mean_and_variance(const float* x, float* mean, float* variance, int n) {
  float m = 0, q = 0, count = 0;
  for (int i = threadIdx.x; i < n; i += 32) {
    count += 1;
    float d = x[blockIdx.x * n + i] - m;
    m += d / count;
    q += d * (x[blockIdx.x * n + i] - m);
  }
  for (int o = 1; o < 32; o *= 2) {  // Welford's parts are joined as Chan does
    float m2 = __shfl_xor_sync(~0u, m, o), q2 = __shfl_xor_sync(~0u, q, o), c2 = __shfl_xor_sync(~0u, count, o);
    float all = count + c2, d = m2 - m;
    m = (m * count + m2 * c2) / all;
    q += q2 + d * d * count * c2 / all;
    count = all;
  }
  if (threadIdx.x == 0) { mean[blockIdx.x] = m; variance[blockIdx.x] = q / n; }
}
extern "C" __global__ void dot_in_double(const float* x, const float* y, double* z, int n) {
  double sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += (double)x[i] * y[i];
  for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
  if ((threadIdx.x & 31) == 0) atomicAdd(z, sum);
}
extern "C" __global__ void extremes(const int* x, int* low, int* high) {
  int v = x[blockIdx.x * 32 + threadIdx.x];
  int a = __reduce_min_sync(~0u, v), b = __reduce_max_sync(~0u, v);
  if (threadIdx.x == 0) { low[blockIdx.x] = a; high[blockIdx.x] = b; }
}
extern "C" __global__ void votes_of_a_block(const int* x, int* y) {
  int v = x[blockIdx.x * blockDim.x + threadIdx.x];
  int count = __syncthreads_count(v > 0), all = __syncthreads_and(v > -9), any = __syncthreads_or(v == 9);
  if (threadIdx.x == 0) { y[3 * blockIdx.x] = count; y[3 * blockIdx.x + 1] = all; y[3 * blockIdx.x + 2] = any; }
}
extern "C" __global__ void sums_of_segments(const int* x, const int* starts, int* y) {
  int sum = 0;
  for (int i = starts[blockIdx.x] + threadIdx.x; i < starts[blockIdx.x + 1]; i += 32) sum += x[i];
  sum = __reduce_add_sync(~0u, sum);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
extern "C" __global__ void product_modulo(const unsigned* x, unsigned* y, unsigned modulus) {
  unsigned long long v = x[blockIdx.x * 32 + threadIdx.x];
  for (int o = 16; o; o >>= 1) v = v * __shfl_xor_sync(~0u, v, o) % modulus;
  if (threadIdx.x == 0) y[blockIdx.x] = (unsigned)v;
}
extern "C" __global__ void last_block_finishes(const float* x, float* parts, unsigned* ticket, float* y) {
  __shared__ bool last;
  float sum = warp_sum(x[blockIdx.x * 32 + threadIdx.x]);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    float all = warp_sum(threadIdx.x < gridDim.x ? ((volatile float*)parts)[threadIdx.x] : 0);
    if (threadIdx.x == 0) *y = all;
  }
}
