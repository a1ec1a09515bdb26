// Sparse matrices in the usual formats, and graphs, which are sparse matrices too.
extern "C" __global__ void csr_by_threads(const int* row, const int* column, const float* v, const float* x,
                                          float* y, int n) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= n) return;
  float sum = 0;
  for (int k = row[r]; k < row[r + 1]; k++) sum += v[k] * x[column[k]];
  y[r] = sum;
}
extern "C" __global__ void csr_by_warps(const int* row, const int* column, const float* v, const float* x, float* y) {
  float sum = 0;
  for (int k = row[blockIdx.x] + threadIdx.x; k < row[blockIdx.x + 1]; k += 32) sum += v[k] * __ldg(x + column[k]);
  for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
extern "C" __global__ void coo(const int* row, const int* column, const float* v, const float* x, float* y, int count) {
  int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < count) atomicAdd(y + row[k], v[k] * x[column[k]]);
}
extern "C" __global__ void ell(const int* column, const float* v, const float* x, float* y, int n, int width) {
  int r = threadIdx.x;
  float sum = 0;
  for (int k = 0; k < width; k++) {
    int c = column[k * n + r];
    if (c >= 0) sum += v[k * n + r] * x[c];
  }
  y[r] = sum;
}
extern "C" __global__ void csr_times_dense(const int* row, const int* column, const float* v, const float* x,
                                           float* y, int w) {
  float sum = 0;
  for (int k = row[blockIdx.x]; k < row[blockIdx.x + 1]; k++) sum += v[k] * x[column[k] * w + threadIdx.x];
  y[blockIdx.x * w + threadIdx.x] = sum;
}
extern "C" __global__ void sampled_product(const int* row, const int* column, const float* a, const float* b,
                                           float* v, int n,
                                           int inner) {
  int r = blockIdx.x;
  for (int k = row[r]; k < row[r + 1]; k++) {
    float p = threadIdx.x < inner ? a[r * inner + threadIdx.x] * b[column[k] * inner + threadIdx.x] : 0;
    for (int o = 16; o; o >>= 1) p += __shfl_xor_sync(~0u, p, o);
    if (threadIdx.x == 0) v[k] = p;
  }
}
extern "C" __global__ void levels(const int* row, const int* column, int* level, int n) {  // breadth first, one block
  __shared__ int changed;
  for (int d = 0;; d++) {
    if (threadIdx.x == 0) changed = 0;
    __syncthreads();
    for (int r = threadIdx.x; r < n; r += blockDim.x)
      if (level[r] == d)
        for (int k = row[r]; k < row[r + 1]; k++)
          if (atomicCAS(level + column[k], -1, d + 1) == -1) changed = 1;
    __syncthreads();
    bool more = changed;
    __syncthreads();
    if (!more) break;
  }
}
extern "C" __global__ void shortest_paths(int* d, int n) {  // Floyd and Warshall
  for (int k = 0; k < n; k++) {
    int through = d[threadIdx.y * n + k] + d[k * n + threadIdx.x];
    __syncthreads();
    d[threadIdx.y * n + threadIdx.x] = min(d[threadIdx.y * n + threadIdx.x], through);
    __syncthreads();
  }
}
extern "C" __global__ void rank_of_pages(const int* row, const int* column, const int* degree, const float* x,
                                         float* y, int n) {
  int r = threadIdx.x;
  float sum = 0;
  for (int k = row[r]; k < row[r + 1]; k++) sum += x[column[k]] / degree[column[k]];
  y[r] = 0.15f / n + 0.85f * sum;
}
extern "C" __global__ void components(const int* row, const int* column, int* label, int n) {
  __shared__ int changed;
  do {
    __syncthreads();
    changed = 0;
    __syncthreads();
    for (int k = row[threadIdx.x]; k < row[threadIdx.x + 1]; k++) {
      int other = ((volatile int*)label)[column[k]];
      if (other < atomicMin(label + threadIdx.x, other)) changed = 1;
    }
    __syncthreads();
  } while (changed);
}
extern "C" __global__ void triangles(const unsigned* neighbours, int* count, int n) {  // rows of bits, n <= 32
  int r = threadIdx.x, found = 0;
  for (int c = 0; c < r; c++)
    if (neighbours[r] >> c & 1) found += __popc(neighbours[r] & neighbours[c] & ((1u << c) - 1));
  found = __reduce_add_sync(~0u, found);
  if (r == 0) *count = found;
}
