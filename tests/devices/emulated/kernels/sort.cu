// Comparison networks, ranks, radix passes, merges.
extern "C" __global__ void bitonic(const int* x, int* y) {
  __shared__ int s[256];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 256 + t];
  for (int k = 2; k <= 256; k *= 2)
    for (int j = k / 2; j; j /= 2) {
      __syncthreads();
      int other = t ^ j;
      if (other > t && (s[t] > s[other]) == ((t & k) == 0)) { int v = s[t]; s[t] = s[other]; s[other] = v; }
    }
  __syncthreads();
  y[blockIdx.x * 256 + t] = s[t];
}
extern "C" __global__ void bitonic_by_shuffles(const float* x, float* y) {
  float v = x[blockIdx.x * 32 + threadIdx.x];
  for (int k = 2; k <= 32; k *= 2)
    for (int j = k / 2; j; j /= 2) {
      float w = __shfl_xor_sync(~0u, v, j);
      bool up = (threadIdx.x & k) == 0, low = (threadIdx.x & j) == 0;
      v = up == low ? fminf(v, w) : fmaxf(v, w);
    }
  y[blockIdx.x * 32 + threadIdx.x] = v;
}
extern "C" __global__ void odd_even(int* x, int n) {
  int t = threadIdx.x;
  for (int k = 0; k < n; k++) {
    int a = 2 * t + (k & 1);
    if (a + 1 < n && x[a] > x[a + 1]) { int v = x[a]; x[a] = x[a + 1]; x[a + 1] = v; }
    __syncthreads();
  }
}
extern "C" __global__ void by_rank(const double* x, double* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, rank = 0;
  if (i >= n) return;
  for (int j = 0; j < n; j++) rank += x[j] < x[i] || (x[j] == x[i] && j < i);
  y[rank] = x[i];
}
extern "C" __global__ void radix(const unsigned* x, unsigned* y) {  // one bit per pass
  __shared__ unsigned s[128], ones[4];
  int t = threadIdx.x;
  unsigned v = x[t];
  for (int bit = 0; bit < 32; bit++) {
    bool one = v >> bit & 1;
    unsigned who = __ballot_sync(~0u, one);
    if (t % 32 == 0) ones[t / 32] = __popc(who);
    __syncthreads();
    int before = __popc(who & ((1u << t % 32) - 1)), all = 0;
    for (int w = 0; w < 4; w++) { if (w < t / 32) before += ones[w]; all += ones[w]; }
    s[one ? 128 - all + before : t - before] = v;
    __syncthreads();
    v = s[t];
  }
  y[t] = v;
}
extern "C" __global__ void merge_path(const int* a, const int* b, int* c, int na, int nb) {
  int d = blockIdx.x * blockDim.x + threadIdx.x;
  if (d >= na + nb) return;
  int low = max(0, d - nb), high = min(d, na);
  while (low < high) {
    int i = (low + high) / 2;
    if (a[i] <= b[d - 1 - i]) low = i + 1; else high = i;
  }
  int i = low, j = d - low;
  c[d] = j >= nb || (i < na && a[i] <= b[j]) ? a[i] : b[j];
}
extern "C" __global__ void counting(const unsigned char* key, int* order, int n) {
  __shared__ int starts[17];
  if (threadIdx.x < 17) {
    int before = 0;
    for (int i = 0; i < n; i++) before += key[i] < threadIdx.x;
    starts[threadIdx.x] = before;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    int at = starts[key[i]];
    for (int j = 0; j < i; j++) at += key[j] == key[i];
    order[at] = i;
  }
}
extern "C" __global__ void best_three(const float* x, float* best, int* at, int n) {
  const float* row = x + threadIdx.x * n;
  float v[3] = {-INFINITY, -INFINITY, -INFINITY};
  int w[3] = {-1, -1, -1};
  for (int i = 0; i < n; i++) {
    float a = row[i];
    int b = i;
#pragma unroll
    for (int k = 0; k < 3; k++)
      if (a > v[k]) { float va = v[k]; int wa = w[k]; v[k] = a; w[k] = b; a = va; b = wa; }
  }
  for (int k = 0; k < 3; k++) { best[3 * threadIdx.x + k] = v[k]; at[3 * threadIdx.x + k] = w[k]; }
}
extern "C" __global__ void bounds_in_a_sorted_list(const int* sorted, const int* x, int* low, int* high, int n) {
  int v = x[threadIdx.x], a = 0, b = n;
  while (a < b) { int m = (a + b) / 2; if (sorted[m] < v) a = m + 1; else b = m; }
  low[threadIdx.x] = a;
  for (b = n; a < b;) { int m = (a + b) / 2; if (sorted[m] <= v) a = m + 1; else b = m; }
  high[threadIdx.x] = a;
}
