// Rows are normalised: a reduction, then a pass over the row.
__device__ float block_reduce(float v, bool greatest) {
  __shared__ float part[32];
  for (int o = 16; o; o >>= 1) {
    float w = __shfl_xor_sync(~0u, v, o);
    v = greatest ? fmaxf(v, w) : v + w;
  }
  if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[0];
  for (int w = 1; w < blockDim.x / 32; w++) v = greatest ? fmaxf(v, part[w]) : v + part[w];
  __syncthreads();
  return v;
}

extern "C" __global__ void softmax(const float* x, float* y, int n) {
  x += blockIdx.x * n; y += blockIdx.x * n;
  float m = -INFINITY, s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, x[i]);
  m = block_reduce(m, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += __expf(x[i] - m);
  s = block_reduce(s, false);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = __fdividef(__expf(x[i] - m), s);
}
extern "C" __global__ void online_softmax(const float* x, float* y, int n) {
  x += blockIdx.x * n; y += blockIdx.x * n;
  float m = -INFINITY, s = 0;
  for (int i = threadIdx.x; i < n; i += 32) {
    float next = fmaxf(m, x[i]);
    s = s * exp2f((m - next) * 1.44269504f) + exp2f((x[i] - next) * 1.44269504f);
    m = next;
  }
  for (int o = 16; o; o >>= 1) {
    float m2 = __shfl_xor_sync(~0u, m, o), s2 = __shfl_xor_sync(~0u, s, o), next = fmaxf(m, m2);
    s = s * expf(m - next) + s2 * expf(m2 - next);
    m = next;
  }
  for (int i = threadIdx.x; i < n; i += 32) y[i] = expf(x[i] - m) / s;
}
extern "C" __global__ void log_softmax(const float* x, float* y, int n) {
  x += blockIdx.x * n; y += blockIdx.x * n;
  float m = -INFINITY, s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, x[i]);
  m = block_reduce(m, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(x[i] - m);
  s = logf(block_reduce(s, false));
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] - m - s;
}
extern "C" __global__ void layer_norm(const float* x, const float* scale, const float* shift, float* y, int n) {
  x += blockIdx.x * n; y += blockIdx.x * n;
  float s = 0, q = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
  float mean = block_reduce(s, false) / n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) q += (x[i] - mean) * (x[i] - mean);
  float r = rsqrtf(block_reduce(q, false) / n + 1e-5f);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = (x[i] - mean) * r * scale[i] + shift[i];
}
extern "C" __global__ void rms_norm(const float4* x, float4* y, int quarter) {
  x += blockIdx.x * quarter; y += blockIdx.x * quarter;
  float q = 0;
  for (int i = threadIdx.x; i < quarter; i += blockDim.x) {
    float4 v = x[i];
    q += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  float r = rsqrtf(block_reduce(q, false) / (4 * quarter) + 1e-6f);
  for (int i = threadIdx.x; i < quarter; i += blockDim.x) {
    float4 v = x[i];
    y[i] = make_float4(v.x * r, v.y * r, v.z * r, v.w * r);
  }
}
extern "C" __global__ void batch_norm(const float* x, float* y, int batch, int channels, int pixels) {
  int c = blockIdx.x, n = batch * pixels;
  float s = 0, q = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float v = x[(i / pixels * channels + c) * pixels + i % pixels];
    s += v;
    q += v * v;
  }
  float mean = block_reduce(s, false) / n, r = rsqrtf(block_reduce(q, false) / n - mean * mean + 1e-5f);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    int at = (i / pixels * channels + c) * pixels + i % pixels;
    y[at] = (x[at] - mean) * r;
  }
}
extern "C" __global__ void cross_entropy(const float* x, const int* label, float* loss, int n) {
  x += blockIdx.x * n;
  float m = -INFINITY, s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, x[i]);
  m = block_reduce(m, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(x[i] - m);
  s = block_reduce(s, false);
  if (threadIdx.x == 0) loss[blockIdx.x] = logf(s) + m - x[label[blockIdx.x]];
}
extern "C" __global__ void unit_length(const double* x, double* y, int n) {
  double q = 0;
  for (int i = threadIdx.x; i < n; i += 32) q += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  for (int o = 16; o; o >>= 1) q += __shfl_xor_sync(~0u, q, o);
  double r = rsqrt(q);
  for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * r;
}
