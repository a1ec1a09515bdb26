// Counter-based and sequential generators, and what is drawn with them.
extern "C" __global__ void xorshift(const unsigned* seed, unsigned* y, int rounds) {
  unsigned v = seed[threadIdx.x];
  for (int k = 0; k < rounds; k++) { v ^= v << 13; v ^= v >> 17; v ^= v << 5; }
  y[threadIdx.x] = v;
}
extern "C" __global__ void philox(unsigned* y, unsigned key0, unsigned key1) {  // 4 x 32, ten rounds
  unsigned c0 = threadIdx.x, c1 = 0, c2 = 0, c3 = 0;
  for (int k = 0; k < 10; k++) {
    unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2),
        l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ key0; c1 = l1; c2 = h0 ^ c3 ^ key1; c3 = l0;
    key0 += 0x9E3779B9u; key1 += 0xBB67AE85u;
  }
  ((uint4*)y)[threadIdx.x] = make_uint4(c0, c1, c2, c3);
}
extern "C" __global__ void pcg(const unsigned long long* state, unsigned* y) {
  unsigned long long s = state[threadIdx.x];
  unsigned x = (unsigned)((s >> 18 ^ s) >> 27);
  y[threadIdx.x] = __funnelshift_r(x, x, (unsigned)(s >> 59));
}
extern "C" __global__ void radical_inverse(float* y) {
  y[2 * threadIdx.x] = __brev(threadIdx.x) * 0x1p-32f;
  float f = 1, r = 0;
  for (int i = threadIdx.x; i; i /= 3) { f /= 3; r += f * (i % 3); }
  y[2 * threadIdx.x + 1] = r;
}
extern "C" __global__ void points_in_a_circle(unsigned* count, int draws) {
  unsigned v = blockIdx.x * blockDim.x + threadIdx.x + 1, inside = 0;
  for (int k = 0; k < draws; k++) {
    v = v * 1664525u + 1013904223u;
    unsigned x = v >> 16;
    v = v * 1664525u + 1013904223u;
    unsigned y = v >> 16;
    inside += (unsigned long long)x * x + (unsigned long long)y * y < 1ull << 32;
  }
  inside = __reduce_add_sync(~0u, inside);
  if ((threadIdx.x & 31) == 0) atomicAdd(count, inside);
}
extern "C" __global__ void box_muller(const float* u, float* z) {
  float r = sqrtf(-2 * logf(u[2 * threadIdx.x])), s, c;
  sincospif(2 * u[2 * threadIdx.x + 1], &s, &c);
  z[2 * threadIdx.x] = r * c;
  z[2 * threadIdx.x + 1] = r * s;
}
extern "C" __global__ void dropout(const float* x, float* y, float keep, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned h = i * 0x9E3779B9u;
  h = (h ^ h >> 16) * 0x85EBCA6Bu;
  h = (h ^ h >> 13) * 0xC2B2AE35u;
  h ^= h >> 16;
  y[i] = (h >> 8) * 0x1p-24f < keep ? x[i] / keep : 0;
}
