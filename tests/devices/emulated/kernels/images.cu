// Pictures without textures, and fractals.
extern "C" __global__ void to_gray(const uchar3* x, unsigned char* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = (77 * x[i].x + 150 * x[i].y + 29 * x[i].z + 128) >> 8;
}
extern "C" __global__ void integral_rows(const int* x, int* y, int w) {
  int sum = 0;
  for (int c = 0; c < w; c++) { sum += x[threadIdx.x * w + c]; y[threadIdx.x * w + c] = sum; }
}
extern "C" __global__ void mandelbrot(unsigned char* y, int w, int limit) {
  double cx = -2.0 + 3.0 * threadIdx.x / w, cy = -1.5 + 3.0 * blockIdx.x / w, a = 0, b = 0;
  int k = 0;
  while (k < limit && __dadd_rn(__dmul_rn(a, a), __dmul_rn(b, b)) <= 4) {
    double next = __dadd_rn(__dsub_rn(__dmul_rn(a, a), __dmul_rn(b, b)), cx);
    b = __dadd_rn(__dmul_rn(__dmul_rn(2, a), b), cy);
    a = next;
    k++;
  }
  y[blockIdx.x * w + threadIdx.x] = k;
}
extern "C" __global__ void rotate_by_a_quarter(const unsigned* x, unsigned* y, int n) {
  y[threadIdx.x * n + n - 1 - blockIdx.x] = x[blockIdx.x * n + threadIdx.x];
}
extern "C" __global__ void equalize(const unsigned char* x, unsigned char* y, int n) {
  __shared__ int s[256];
  int t = threadIdx.x;
  s[t] = 0;
  __syncthreads();
  for (int i = t; i < n; i += 256) atomicAdd(s + x[i], 1);
  for (int o = 1; o < 256; o *= 2) {
    __syncthreads();
    int v = t >= o ? s[t - o] : 0;
    __syncthreads();
    s[t] += v;
  }
  __syncthreads();
  for (int i = t; i < n; i += 256) y[i] = s[x[i]] * 255 / n;
}
extern "C" __global__ void ordered_dither(const float* x, unsigned char* y, int w) {
  const unsigned char order[4][4] = {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}};
  int c = threadIdx.x, r = blockIdx.x;
  y[r * w + c] = x[r * w + c] * 16 > order[r % 4][c % 4] + 0.5f;
}
extern "C" __global__ void distance_to_set(const uchar2* points, float* y, int n, int w) {
  float best = INFINITY;
  for (int k = 0; k < n; k++) {
    float dx = (float)points[k].x - threadIdx.x, dy = (float)points[k].y - blockIdx.x;
    best = fminf(best, dx * dx + dy * dy);
  }
  y[blockIdx.x * w + threadIdx.x] = __fsqrt_rn(best);
}
extern "C" __global__ void bodies(const float4* x, float4* force, int n) {  // gravity in tiles of shared memory
  __shared__ float4 s[32];
  int i = blockIdx.x * 32 + threadIdx.x;
  float4 p = x[i];
  float ax = 0, ay = 0, az = 0;
  for (int from = 0; from < n; from += 32) {
    s[threadIdx.x] = x[from + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 32; j++) {
      float dx = s[j].x - p.x, dy = s[j].y - p.y, dz = s[j].z - p.z, r = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
      r = s[j].w * r * r * r;
      ax += dx * r; ay += dy * r; az += dz * r;
    }
    __syncthreads();
  }
  force[i] = make_float4(ax, ay, az, 0);
}
extern "C" __global__ void nearest_centre(const float2* x, const float2* centre, int* which, float* sum, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, best = 0;
  float least = INFINITY;
  for (int j = 0; j < k; j++) {
    float dx = x[i].x - centre[j].x, dy = x[i].y - centre[j].y, d = dx * dx + dy * dy;
    if (d < least) { least = d; best = j; }
  }
  which[i] = best;
  atomicAdd(sum + 3 * best, x[i].x); atomicAdd(sum + 3 * best + 1, x[i].y); atomicAdd(sum + 3 * best + 2, 1.0f);
}
extern "C" __global__ void option_price(const float* s, const float* k, float* call, float r, float v, float t) {
  int i = threadIdx.x;
  float d1 = (logf(s[i] / k[i]) + (r + v * v / 2) * t) / (v * sqrtf(t)), d2 = d1 - v * sqrtf(t);
  call[i] = s[i] * normcdff(d1) - k[i] * expf(-r * t) * normcdff(d2);
}
