// Threads that meet in memory.
#define AT (blockIdx.x * blockDim.x + threadIdx.x)

extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, int n) {
  __shared__ unsigned s[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) s[i] = 0;
  __syncthreads();
  for (int i = AT; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) if (s[i]) atomicAdd(&bins[i], s[i]);
}
extern "C" __global__ void histogram_of_floats(const float* x, int* bins, int count, float low, float high, int n) {
  if (AT >= n) return;
  int bin = (int)floorf((x[AT] - low) / (high - low) * count);
  atomicAdd(&bins[min(max(bin, 0), count - 1)], 1);
}
extern "C" __global__ void greatest_double(const double* x, unsigned long long* best) {
  unsigned long long seen = *best, wanted = __double_as_longlong(x[AT]);
  while (__longlong_as_double(seen) < x[AT]) {
    unsigned long long old = atomicCAS(best, seen, wanted);
    if (old == seen) break;
    seen = old;
  }
}
extern "C" __global__ void wrapping_counters(unsigned* up, unsigned* down, int* of_each) {
  atomicInc(up, 6);
  atomicDec(down, 10);
  atomicSub(of_each + threadIdx.x % 4, 2);
}
extern "C" __global__ void aggregated_in_warps(const int* x, int* y, int* count, int n) {
  bool keep = AT < n && x[AT] % 3 == 0;
  unsigned who = __ballot_sync(~0u, keep);
  if (!keep) return;
  int leader = __ffs(who) - 1, base = 0, lane = threadIdx.x & 31;
  if (lane == leader) base = atomicAdd(count, __popc(who));
  base = __shfl_sync(who, base, leader);
  y[base + __popc(who & ((1u << lane) - 1))] = x[AT];
}
extern "C" __global__ void bit_sets(const int* x, unsigned* all, unsigned* some, unsigned long long* parity) {
  atomicOr(some + x[AT] / 32, 1u << x[AT] % 32);
  atomicAnd(all, ~(1u << x[AT] % 32));
  atomicXor(parity, 1ull << x[AT] % 64);
}
extern "C" __global__ void first_of_each_key(const int* key, int* first) { atomicMin(first + key[AT], (int)AT); }
extern "C" __global__ void locks_of_buckets(const int* key, volatile int* sum, int* lock) {
  int k = key[AT];
  for (bool done = false; !done;) {
    if (atomicCAS(lock + k, 0, 1) == 0) {
      __threadfence();
      sum[k] = sum[k] + AT;
      __threadfence();
      atomicExch(lock + k, 0);
      done = true;
    }
  }
}
extern "C" __global__ void hash_table(const unsigned* key, unsigned* table, unsigned* slot, int size) {
  unsigned k = key[AT], at = k * 2654435761u % size;
  while (true) {
    unsigned old = atomicCAS(table + at, 0xffffffffu, k);
    if (old == 0xffffffffu || old == k) break;
    at = (at + 1) % size;
  }
  slot[AT] = at;
}
extern "C" __global__ void sums_in_shared_memory(const float* x, const int* key, float* y) {
  __shared__ float s[8];
  if (threadIdx.x < 8) s[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(s + key[AT], x[AT]);
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(y + threadIdx.x, s[threadIdx.x]);
}
