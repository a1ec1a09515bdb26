// Integers as rows of bits, and strings.
extern "C" __global__ void counts(const unsigned* x, int* y) {
  unsigned v = x[threadIdx.x];
  y[4 * threadIdx.x] = __popc(v); y[4 * threadIdx.x + 1] = __clz(v);
  y[4 * threadIdx.x + 2] = __ffs(v); y[4 * threadIdx.x + 3] = __brev(v);
}
extern "C" __global__ void counts_of_64(const long long* x, int* y) {
  long long v = x[threadIdx.x];
  y[3 * threadIdx.x] = __popcll(v); y[3 * threadIdx.x + 1] = __clzll(v); y[3 * threadIdx.x + 2] = __ffsll(v);
}
extern "C" __global__ void gray_and_back(const unsigned* x, unsigned* gray, unsigned* back) {
  unsigned g = x[threadIdx.x] ^ x[threadIdx.x] >> 1, b = g;
  for (int s = 1; s < 32; s *= 2) b ^= b >> s;
  gray[threadIdx.x] = g; back[threadIdx.x] = b;
}
__device__ unsigned spread(unsigned v) {
  v = (v | v << 8) & 0x00ff00ffu;
  v = (v | v << 4) & 0x0f0f0f0fu;
  v = (v | v << 2) & 0x33333333u;
  return (v | v << 1) & 0x55555555u;
}
extern "C" __global__ void morton(const ushort2* x, unsigned* y) {
  y[threadIdx.x] = spread(x[threadIdx.x].x) | spread(x[threadIdx.x].y) << 1;
}
extern "C" __global__ void crc32(const unsigned char* x, unsigned* y, int n) {
  unsigned crc = ~0u;
  for (int i = 0; i < n; i++) {
    crc ^= x[threadIdx.x * n + i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  y[threadIdx.x] = ~crc;
}
extern "C" __global__ void fnv(const unsigned char* x, unsigned long long* y, int n) {
  unsigned long long h = 14695981039346656037ull;
  for (int i = 0; i < n; i++) h = (h ^ x[threadIdx.x * n + i]) * 1099511628211ull;
  y[threadIdx.x] = h;
}
extern "C" __global__ void swapped_bytes(const unsigned* x, unsigned* y) {
  y[threadIdx.x] = __byte_perm(x[threadIdx.x], 0, 0x0123);
}
extern "C" __global__ void rotated(const unsigned* x, const unsigned* by, unsigned* y) {
  y[threadIdx.x] = __funnelshift_l(x[threadIdx.x], x[threadIdx.x], by[threadIdx.x]);
}
extern "C" __global__ void bytes_by_simd(const unsigned* a, const unsigned* b, unsigned* sum,
                                         unsigned* difference, unsigned* most) {
  int t = threadIdx.x;
  sum[t] = __vaddus4(a[t], b[t]); difference[t] = __vabsdiffu4(a[t], b[t]); most[t] = __vmaxu4(a[t], b[t]);
}
extern "C" __global__ void occurrences(const char* text, const char* word, int* at, int n, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i + m > n) return;
  bool same = true;
  for (int k = 0; k < m && same; k++) same = text[i + k] == word[k];
  if (same) atomicAdd(at + i, 1);
}
extern "C" __global__ void decimal_digits(const unsigned* x, char* y) {
  unsigned v = x[threadIdx.x];
  char* out = y + 10 * threadIdx.x;
  for (int k = 9; k >= 0; k--) { out[k] = '0' + v % 10; v /= 10; }
}
extern "C" __global__ void code_points(const unsigned char* text, int* count, int n) {
  int found = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) found += (text[i] & 0xc0) != 0x80;
  for (int o = 16; o; o >>= 1) found += __shfl_xor_sync(~0u, found, o);
  if (threadIdx.x == 0) *count = found;
}
extern "C" __global__ void collatz(const unsigned* x, int* steps) {
  unsigned long long v = x[threadIdx.x];
  int k = 0;
  for (; v != 1; k++) v = v & 1 ? 3 * v + 1 : v / 2;
  steps[threadIdx.x] = k;
}
extern "C" __global__ void queens(int* solutions, int n) {  // one first row per thread
  unsigned all = (1u << n) - 1, columns[16], left[16], right[16], free[16];
  int depth = 1, found = 0;
  columns[1] = 1u << threadIdx.x; left[1] = columns[1] << 1; right[1] = columns[1] >> 1;
  free[1] = all & ~(columns[1] | left[1] | right[1]);
  while (depth >= 1) {
    if (!free[depth]) { depth--; continue; }
    unsigned bit = free[depth] & -free[depth];
    free[depth] ^= bit;
    if (depth + 1 == n) { found++; continue; }
    columns[depth + 1] = columns[depth] | bit;
    left[depth + 1] = (left[depth] | bit) << 1;
    right[depth + 1] = (right[depth] | bit) >> 1;
    depth++;
    free[depth] = all & ~(columns[depth] | left[depth] | right[depth]);
  }
  atomicAdd(solutions, found);
}
