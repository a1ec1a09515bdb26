// Convolutions, pooling, resampling.
extern "C" __global__ void direct(const float* x, const float* w, float* y, int channels, int h, int width,
                                  int outputs) {
  int ow = width - 2, oh = h - 2, c = threadIdx.x, r = blockIdx.x, o = blockIdx.y;
  float sum = 0;
  for (int i = 0; i < channels; i++)
    for (int a = 0; a < 3; a++)
      for (int b = 0; b < 3; b++)
        sum += x[(i * h + r + a) * width + c + b] * w[((o * channels + i) * 3 + a) * 3 + b];
  y[(o * oh + r) * ow + c] = sum;
}
extern "C" __global__ void depthwise(const float* x, const float* w, float* y, int h, int width) {
  int c = threadIdx.x, r = threadIdx.y, channel = blockIdx.x;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 9; k++) {
    int i = r + k / 3 - 1, j = c + k % 3 - 1;
    if (i >= 0 && i < h && j >= 0 && j < width) sum = fmaf(x[(channel * h + i) * width + j], w[channel * 9 + k], sum);
  }
  y[(channel * h + r) * width + c] = sum;
}
extern "C" __global__ void transposed(const float* x, const float* w, float* y, int n, int taps, int stride) {
  int i = threadIdx.x;
  float sum = 0;
  for (int k = 0; k < taps; k++)
    if (i >= k && (i - k) % stride == 0 && (i - k) / stride < n) sum += x[(i - k) / stride] * w[k];
  y[i] = sum;
}
extern "C" __global__ void greatest_of_pools(const float* x, float* y, unsigned char* at, int width) {
  int c = threadIdx.x, r = blockIdx.x, n = width / 2;
  float best = -INFINITY;
  int where = 0;
  for (int k = 0; k < 4; k++) {
    float v = x[(2 * r + k / 2) * width + 2 * c + k % 2];
    if (v > best) { best = v; where = k; }
  }
  y[r * n + c] = best;
  at[r * n + c] = where;
}
extern "C" __global__ void mean_of_pools(const float* x, float* y, int n, int window) {
  int i = threadIdx.x, count = 0;
  float sum = 0;
  for (int k = max(0, i - window / 2); k <= min(n - 1, i + window / 2); k++, count++) sum += x[k];
  y[i] = sum / count;
}
extern "C" __global__ void bilinear(const float* x, float* y, int n, int m) {  // square images
  int c = threadIdx.x, r = blockIdx.x;
  float fy = fmaxf((r + 0.5f) * n / m - 0.5f, 0), fx = fmaxf((c + 0.5f) * n / m - 0.5f, 0);
  int y0 = (int)fy, x0 = (int)fx, y1 = min(y0 + 1, n - 1), x1 = min(x0 + 1, n - 1);
  float dy = fy - y0, dx = fx - x0;
  float top = x[y0 * n + x0] + dx * (x[y0 * n + x1] - x[y0 * n + x0]);
  float bottom = x[y1 * n + x0] + dx * (x[y1 * n + x1] - x[y1 * n + x0]);
  y[r * m + c] = top + dy * (bottom - top);
}
extern "C" __global__ void causal_1d(const float* x, const float* w, float* y, int n) {  // four taps in registers
  const float* row = x + blockIdx.x * n;
  float a = 0, b = 0, c = 0;
  for (int i = 0; i < n; i++) {
    float d = row[i];
    y[blockIdx.x * n + i] = w[0] * a + w[1] * b + w[2] * c + w[3] * d;
    a = b; b = c; c = d;
  }
}
extern "C" __global__ void winograd(const float* x, const float* g, float* y) {  // F(2, 3)
  const float* d = x + 2 * threadIdx.x;
  float m1 = (d[0] - d[2]) * g[0], m4 = (d[1] - d[3]) * g[2];
  float m2 = (d[1] + d[2]) * (g[0] + g[1] + g[2]) / 2, m3 = (d[2] - d[1]) * (g[0] - g[1] + g[2]) / 2;
  y[2 * threadIdx.x] = m1 + m2 + m3;
  y[2 * threadIdx.x + 1] = m2 - m3 - m4;
}
