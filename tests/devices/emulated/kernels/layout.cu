// Elements move, and no arithmetic is done with them.
extern "C" __global__ void transpose(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8)
    if (r + k < rows && c < columns) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * columns + c];
  __syncthreads();
  c = blockIdx.y * 32 + threadIdx.x;
  r = blockIdx.x * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8)
    if (r + k < columns && c < rows) y[(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}
extern "C" __global__ void transpose_by_xor(const int* x, int* y) {  // a swizzle in place of padding
  __shared__ int tile[32][32];
  for (int k = threadIdx.y; k < 32; k += 8) tile[k][threadIdx.x ^ k] = x[32 * k + threadIdx.x];
  __syncthreads();
  for (int k = threadIdx.y; k < 32; k += 8) y[32 * k + threadIdx.x] = tile[threadIdx.x][k ^ threadIdx.x];
}
extern "C" __global__ void permute(const short* x, short* y, int a, int b, int c) {  // [a, b, c] -> [c, a, b]
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a * b * c; i += gridDim.x * blockDim.x) {
    int k = i % c, j = i / c % b, h = i / (b * c);
    y[(k * a + h) * b + j] = x[i];
  }
}
extern "C" __global__ void gather_rows(const float4* table, const long long* index, float4* y, int width) {
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    y[blockIdx.x * width + c] = table[index[blockIdx.x] * width + c];
}
extern "C" __global__ void scatter(const double* x, const int* to, double* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[to[i]] = x[i];
}
extern "C" __global__ void pad_by_reflection(const float* x, float* y, int n, int pad) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n + 2 * pad) return;
  int j = abs(i - pad);
  y[i] = x[j < n ? j : 2 * (n - 1) - j];
}
extern "C" __global__ void columns_of_patches(const float* x, float* y, int h, int w) {  // 3 x 3, one border of zeros
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= h * w) return;
  for (int k = 0; k < 9; k++) {
    int r = i / w + k / 3 - 1, c = i % w + k % 3 - 1;
    y[k * h * w + i] = r >= 0 && r < h && c >= 0 && c < w ? x[r * w + c] : 0;
  }
}
extern "C" __global__ void structures_to_arrays(const uchar4* x, unsigned char* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uchar4 v = x[i];
  y[i] = v.x; y[n + i] = v.y; y[2 * n + i] = v.z; y[3 * n + i] = v.w;
}
extern "C" __global__ void reverse_in_place(int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 2) { int v = x[i]; x[i] = x[n - 1 - i]; x[n - 1 - i] = v; }
}
extern "C" __global__ void one_hot(const int* x, unsigned char* y, int classes) {
  for (int c = threadIdx.x; c < classes; c += blockDim.x) y[blockIdx.x * classes + c] = c == x[blockIdx.x];
}
extern "C" __global__ void lower_triangle(const float* x, float* y, int n, int diagonal) {
  int c = threadIdx.x, r = blockIdx.x;
  y[r * n + c] = c <= r + diagonal ? x[r * n + c] : 0;
}
