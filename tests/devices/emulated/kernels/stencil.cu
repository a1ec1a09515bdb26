// Every output element reads its neighbours.
extern "C" __global__ void jacobi(const float* x, float* y, int h, int w) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  if (r >= h || c >= w) return;
  bool edge = r == 0 || c == 0 || r == h - 1 || c == w - 1;
  y[r * w + c] = edge ? x[r * w + c]
                      : 0.25f * (x[(r - 1) * w + c] + x[(r + 1) * w + c] + x[r * w + c - 1] + x[r * w + c + 1]);
}
extern "C" __global__ void seven_points(const float* x, float* y, int n) {  // planes go through registers
  int i = threadIdx.x + 1, j = threadIdx.y + 1;
  float below = x[j * n + i], here = x[n * n + j * n + i];
  for (int k = 1; k < n - 1; k++) {
    float above = x[(k + 1) * n * n + j * n + i];
    const float* p = x + k * n * n + j * n + i;
    y[k * n * n + j * n + i] = below + above + p[-1] + p[1] + p[-n] + p[n] - 6 * here;
    below = here;
    here = above;
  }
}
__constant__ float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};
extern "C" __global__ void binomial(const float* x, float* y, int n) {
  __shared__ float s[128 + 4];
  int i = blockIdx.x * 128 + threadIdx.x;
  for (int t = threadIdx.x; t < 132; t += 128) {
    int j = blockIdx.x * 128 + t - 2;
    s[t] = j >= 0 && j < n ? x[j] : 0;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 5; k++) sum += weights[k] * s[threadIdx.x + k];
  if (i < n) y[i] = sum;
}
extern "C" __global__ void game_of_life(const unsigned char* x, unsigned char* y, int h, int w) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= h * w) return;
  int r = i / w, c = i % w, around = 0;
  for (int k = 0; k < 9; k++) if (k != 4) around += x[(r + k / 3 + h - 1) % h * w + (c + k % 3 + w - 1) % w];
  y[i] = around == 3 || (around == 2 && x[i]);
}
extern "C" __global__ void median_of_nine(const unsigned char* x, unsigned char* y, int h, int w) {
  int c = threadIdx.x + 1, r = blockIdx.x + 1;
  unsigned char v[9];
  for (int k = 0; k < 9; k++) v[k] = x[(r + k / 3 - 1) * w + c + k % 3 - 1];
  for (int a = 0; a < 5; a++)
    for (int b = a + 1; b < 9; b++)
      if (v[b] < v[a]) { unsigned char t = v[a]; v[a] = v[b]; v[b] = t; }
  y[(r - 1) * (w - 2) + c - 1] = v[4];
}
extern "C" __global__ void wave(const float* before, const float* now, float* next, int n, int steps) {
  extern __shared__ float s[];
  float *a = s, *b = s + n, *c = s + 2 * n;
  int t = threadIdx.x;
  a[t] = before[t];
  b[t] = now[t];
  for (int k = 0; k < steps; k++) {
    __syncthreads();
    c[t] = 2 * b[t] - a[t] + 0.25f * (b[(t + 1) % n] - 2 * b[t] + b[(t + n - 1) % n]);
    float* free = a;
    a = b; b = c; c = free;
  }
  next[t] = b[t];
}
extern "C" __global__ void sobel(const float* x, float* y, int h, int w) {
  int c = threadIdx.x, r = blockIdx.x;
  auto at = [&](int i, int j) { return x[min(max(i, 0), h - 1) * w + min(max(j, 0), w - 1)]; };
  float gx = at(r - 1, c + 1) + 2 * at(r, c + 1) + at(r + 1, c + 1) - at(r - 1, c - 1) - 2 * at(r, c - 1) - at(r + 1,
      c - 1);
  float gy = at(r + 1, c - 1) + 2 * at(r + 1, c) + at(r + 1, c + 1) - at(r - 1, c - 1) - 2 * at(r - 1, c) - at(r - 1,
      c + 1);
  y[r * w + c] = sqrtf(gx * gx + gy * gy);
}
