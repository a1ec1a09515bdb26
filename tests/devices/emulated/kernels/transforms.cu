// Fourier transforms and their relatives.
extern "C" __global__ void dft(const float2* x, float2* y, int n) {
  int k = threadIdx.x;
  float2 sum = make_float2(0, 0);
  for (int i = 0; i < n; i++) {
    float s, c;
    sincospif(-2.0f * (k * i % n) / n, &s, &c);
    sum.x += x[i].x * c - x[i].y * s;
    sum.y += x[i].x * s + x[i].y * c;
  }
  y[k] = sum;
}
extern "C" __global__ void fft(const float2* x, float2* y, int log) {  // radix 2, in place
  extern __shared__ float2 s[];
  int t = threadIdx.x, n = 1 << log;
  for (int i = t; i < n; i += blockDim.x) s[__brev(i) >> (32 - log)] = x[blockIdx.x * n + i];
  for (int half = 1; half < n; half *= 2) {
    __syncthreads();
    int at = t / half * 2 * half + t % half;
    float sine, cosine;
    __sincosf(-3.14159265f * (t % half) / half, &sine, &cosine);
    float2 a = s[at], b = s[at + half], w = make_float2(b.x * cosine - b.y * sine, b.x * sine + b.y * cosine);
    s[at] = make_float2(a.x + w.x, a.y + w.y);
    s[at + half] = make_float2(a.x - w.x, a.y - w.y);
  }
  __syncthreads();
  for (int i = t; i < n; i += blockDim.x) y[blockIdx.x * n + i] = s[i];
}
extern "C" __global__ void walsh_hadamard(const int* x, int* y) {
  int v = x[blockIdx.x * 32 + threadIdx.x];
  for (int o = 1; o < 32; o *= 2) {
    int w = __shfl_xor_sync(~0u, v, o);
    v = threadIdx.x & o ? w - v : v + w;
  }
  y[blockIdx.x * 32 + threadIdx.x] = v;
}
extern "C" __global__ void cosine_transform(const double* x, double* y) {
  double sum = 0;
  for (int i = 0; i < 8; i++) sum += x[blockIdx.x * 8 + i] * cospi((2 * i + 1) * threadIdx.x / 16.0);
  y[blockIdx.x * 8 + threadIdx.x] = sum;
}
extern "C" __global__ void haar(const float* x, float* y, int n) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[2 * t] = x[2 * t]; s[2 * t + 1] = x[2 * t + 1];
  __syncthreads();
  for (int m = n; m > 1; m /= 2) {
    float a = 0, b = 0;
    if (t < m / 2) { a = s[2 * t]; b = s[2 * t + 1]; }
    __syncthreads();
    if (t < m / 2) { s[t] = (a + b) / 2; s[m / 2 + t] = (a - b) / 2; }
    __syncthreads();
  }
  y[2 * t] = s[2 * t]; y[2 * t + 1] = s[2 * t + 1];
}
extern "C" __global__ void modular(const unsigned* x, unsigned* y, int n, unsigned root, unsigned p) {
  unsigned long long sum = 0, w = 1, step = 1;
  for (int i = 0; i < threadIdx.x; i++) step = step * root % p;
  for (int i = 0; i < n; i++) { sum = (sum + x[i] * w) % p; w = w * step % p; }
  y[threadIdx.x] = (unsigned)sum;
}
