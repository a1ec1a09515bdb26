// Dynamic programming, on Hopper's instructions for it where there are some.
extern "C" __global__ void edit_distance(const char* a, const char* b, int* y, int n, int m) {
  // Diagonals of the table; a block has a thread per row.
  __shared__ int s[3][65];
  int i = threadIdx.x;
  for (int d = 0; d <= n + m; d++) {
    int j = d - i, *now = s[d % 3], *one = s[(d + 2) % 3], *two = s[(d + 1) % 3];
    if (i <= n && j >= 0 && j <= m)
      now[i] = i == 0 ? j : j == 0 ? i : min(min(one[i], one[i - 1]) + 1, two[i - 1] + (a[i - 1] != b[j - 1]));
    __syncthreads();
  }
  if (i == n) *y = s[(n + m) % 3][n];
}
extern "C" __global__ void common_subsequence(const int* a, const int* b, int* y, int n, int m) {
  __shared__ int s[2][65];
  int j = threadIdx.x;
  s[0][j] = 0;
  __syncthreads();
  for (int i = 0; i < n; i++) {
    // Within a row the greatest of a prefix is a scan.
    int v = j && j <= m ? max(s[i & 1][j], a[i] == b[j - 1] ? s[i & 1][j - 1] + 1 : 0) : 0;
    for (int o = 1; o < 32; o *= 2) {
      int w = __shfl_up_sync(~0u, v, o);
      if (j >= o) v = max(v, w);
    }
    s[~i & 1][j] = v;
    __syncthreads();
  }
  if (j == m) *y = s[n & 1][m];
}
extern "C" __global__ void knapsack(const int* weight, const int* value, int* best, int items, int capacity) {
  __shared__ int s[2][128];
  int c = threadIdx.x;
  s[0][c] = 0;
  for (int i = 0; i < items; i++) {
    __syncthreads();
    int v = s[i & 1][c];
    if (c >= weight[i]) v = max(v, s[i & 1][c - weight[i]] + value[i]);
    s[~i & 1][c] = v;
  }
  if (c == capacity) *best = s[items & 1][c];
}
extern "C" __global__ void local_alignment(const char* a, const char* b, int* best, int n, int m) {  // with DPX
  __shared__ int s[3][65];
  int i = threadIdx.x, most = 0;
  for (int d = 0; d <= n + m; d++) {
    int j = d - i, *now = s[d % 3], *one = s[(d + 2) % 3], *two = s[(d + 1) % 3];
    if (i <= n && j >= 0 && j <= m) {
      int v = 0;
      if (i && j) {
        v = __viaddmax_s32_relu(two[i - 1], a[i - 1] == b[j - 1] ? 3 : -2, 0);
        v = __vimax3_s32(v, one[i] - 2, one[i - 1] - 2);
      }
      now[i] = v;
      most = max(most, v);
    }
    __syncthreads();
  }
  atomicMax(best, most);
}
extern "C" __global__ void pairs_of_halfwords(const unsigned* a, const unsigned* b, const unsigned* c, unsigned* y) {
  y[threadIdx.x] = __vimax3_s16x2(a[threadIdx.x], b[threadIdx.x], c[threadIdx.x]);
}
extern "C" __global__ void likeliest_path(const float* start, const float* step, const float* seen, int* path,
                                          int n, int steps) {
  __shared__ float s[2][16];
  __shared__ unsigned char from[32][16];
  int t = threadIdx.x;
  s[0][t] = start[t] + seen[t];
  for (int k = 1; k < steps; k++) {
    __syncwarp(0xffff);
    float best = -INFINITY;
    int who = 0;
    for (int j = 0; j < n; j++) {
      float v = s[~k & 1][j] + step[j * n + t];
      if (v > best) { best = v; who = j; }
    }
    s[k & 1][t] = best + seen[k * n + t];
    from[k][t] = who;
  }
  __syncwarp(0xffff);
  if (t == 0) {
    int at = 0;
    for (int j = 1; j < n; j++) if (s[~steps & 1][j] > s[~steps & 1][at]) at = j;
    for (int k = steps - 1; k >= 0; k--) {
      path[k] = at;
      if (k) at = from[k][at];
    }
  }
}
extern "C" __global__ void chain_of_matrices(const int* size, int* cost, int n) {
  extern __shared__ int s[];
  int i = threadIdx.x;
  s[i * n + i] = 0;
  for (int length = 1; length < n; length++) {
    __syncthreads();
    int j = i + length;
    if (j < n) {
      int best = 0x7fffffff;
      for (int k = i; k < j; k++)
        best = min(best, s[i * n + k] + s[(k + 1) * n + j] + size[i] * size[k + 1] * size[j + 1]);
      s[i * n + j] = best;
    }
  }
  __syncthreads();
  if (i == 0) *cost = s[n - 1];
}
