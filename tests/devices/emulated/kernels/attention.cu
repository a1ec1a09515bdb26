// Attention and what models put around it. Heads of 16 elements.
#define WIDTH 16

extern "C" __global__ void one_query_per_block(const float* q, const float* k, const float* v, float* y, int n) {
  __shared__ float p[64];
  int t = threadIdx.x, i = blockIdx.x;
  float s = 0, m = -INFINITY, sum = 0;
  for (int d = 0; d < WIDTH; d++) s += q[i * WIDTH + d] * k[t * WIDTH + d];
  p[t] = s * 0.25f;
  __syncthreads();
  for (int j = 0; j < n; j++) m = fmaxf(m, p[j]);
  for (int j = 0; j < n; j++) sum += expf(p[j] - m);
  if (t < WIDTH) {
    float out = 0;
    for (int j = 0; j < n; j++) out += expf(p[j] - m) * v[j * WIDTH + t];
    y[i * WIDTH + t] = out / sum;
  }
}
extern "C" __global__ void online_and_causal(const float* q, const float* k, const float* v, float* y, int n) {
  __shared__ float sk[32][WIDTH + 1], sv[32][WIDTH + 1];
  int i = blockIdx.x * 32 + threadIdx.x;
  float out[WIDTH] = {}, m = -INFINITY, sum = 0;
  for (int from = 0; from <= blockIdx.x * 32; from += 32) {
    for (int e = threadIdx.x; e < 32 * WIDTH; e += 32) {
      sk[e / WIDTH][e % WIDTH] = k[from * WIDTH + e];
      sv[e / WIDTH][e % WIDTH] = v[from * WIDTH + e];
    }
    __syncthreads();
    for (int j = 0; j < 32 && from + j <= i; j++) {
      float s = 0;
      for (int d = 0; d < WIDTH; d++) s += q[i * WIDTH + d] * sk[j][d];
      s *= 0.25f;
      float next = fmaxf(m, s), old = __expf(m - next), p = __expf(s - next);
      sum = sum * old + p;
      for (int d = 0; d < WIDTH; d++) out[d] = out[d] * old + p * sv[j][d];
      m = next;
    }
    __syncthreads();
  }
  for (int d = 0; d < WIDTH; d++) y[i * WIDTH + d] = out[d] / sum;
}
extern "C" __global__ void rotary(float2* x, int half, float base) {
  int position = blockIdx.x, d = threadIdx.x;
  float s, c, angle = position * powf(base, -(float)d / half);
  sincosf(angle, &s, &c);
  float2 v = x[position * half + d];
  x[position * half + d] = make_float2(v.x * c - v.y * s, v.x * s + v.y * c);
}
extern "C" __global__ void paged_scores(const float* q, const float* pages, const int* table, float* y,
                                        int page, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= n) return;
  const float* k = pages + (table[t / page] * page + t % page) * WIDTH;
  float s = 0;
  for (int d = 0; d < WIDTH; d++) s += q[d] * k[d];
  y[t] = s;
}
extern "C" __global__ void decode_in_parts(const float* q, const float* k, const float* v, float* part, int n) {
  // Each block leaves (greatest, sum, WIDTH values), which the next kernel joins.
  int length = n / gridDim.x, from = blockIdx.x * length, d = threadIdx.x;
  float m = -INFINITY, sum = 0, out = 0;
  for (int j = from; j < from + length; j++) {
    float s = q[d] * k[j * WIDTH + d];
    for (int o = WIDTH / 2; o; o >>= 1) s += __shfl_xor_sync(0xffffu, s, o, WIDTH);
    s *= 0.25f;
    float next = fmaxf(m, s), old = expf(m - next), p = expf(s - next);
    sum = sum * old + p;
    out = out * old + p * v[j * WIDTH + d];
    m = next;
  }
  float* mine = part + blockIdx.x * (WIDTH + 2);
  if (d == 0) { mine[0] = m; mine[1] = sum; }
  mine[2 + d] = out;
}
extern "C" __global__ void embed_and_scale(const int* token, const float* table, float* y, int vocabulary) {
  int id = token[blockIdx.x];
  y[blockIdx.x * WIDTH + threadIdx.x] = id >= 0 && id < vocabulary ? table[id * WIDTH + threadIdx.x] * 4.0f : 0;
}
extern "C" __global__ void swiglu(const float* gate, const float* up, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = gate[i] / (1.0f + __expf(-gate[i])) * up[i];
}
extern "C" __global__ void experts_of_tokens(const float* scores, int* expert, float* weight, int experts) {
  const float* s = scores + threadIdx.x * experts;
  int a = 0, b = -1;
  for (int e = 1; e < experts; e++) {
    if (s[e] > s[a]) { b = a; a = e; } else if (b < 0 || s[e] > s[b]) b = e;
  }
  float p = 1.0f / (1.0f + expf(s[b] - s[a]));
  expert[2 * threadIdx.x] = a; expert[2 * threadIdx.x + 1] = b;
  weight[2 * threadIdx.x] = p; weight[2 * threadIdx.x + 1] = 1 - p;
}
