// Matrix products, from one thread per element to tensor cores.
#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>

extern "C" __global__ void naive(const float* a, const float* b, float* c, int m, int n, int k) {
  int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= m || j >= n) return;
  float sum = 0;
  for (int q = 0; q < k; q++) sum += a[i * k + q] * b[q * n + j];
  c[i * n + j] = sum;
}
extern "C" __global__ void tiled(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float s[16][16], t[16][16];
  int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int q = 0; q < k; q += 16) {
    s[threadIdx.y][threadIdx.x] = i < m && q + threadIdx.x < k ? a[i * k + q + threadIdx.x] : 0;
    t[threadIdx.y][threadIdx.x] = j < n && q + threadIdx.y < k ? b[(q + threadIdx.y) * n + j] : 0;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < 16; p++) sum += s[threadIdx.y][p] * t[p][threadIdx.x];
    __syncthreads();
  }
  if (i < m && j < n) c[i * n + j] = sum;
}
extern "C" __global__ void four_by_four(const float* a, const float* b, float* c, int n) {  // 4 x 4 per thread
  __shared__ float s[16][32], t[16][32];
  float sum[4][4] = {};
  int x = threadIdx.x % 8, y = threadIdx.x / 8, row = blockIdx.y * 32, column = blockIdx.x * 32;
  for (int q = 0; q < n; q += 16) {
    for (int i = threadIdx.x; i < 512; i += 64) {
      s[i % 16][i / 16] = a[(row + i / 16) * n + q + i % 16];
      t[i / 32][i % 32] = b[(q + i / 32) * n + column + i % 32];
    }
    __syncthreads();
    for (int p = 0; p < 16; p++) {
      float4 u = *(float4*)&s[p][4 * y], v = *(float4*)&t[p][4 * x];
      float us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) sum[i][j] += us[i] * vs[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; i++)
    *(float4*)&c[(row + 4 * y + i) * n + column + 4 * x] = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
}
extern "C" __global__ void bytes_by_dp4a(const int* a, const int* b, int* c, int n, int words) {
  int i = blockIdx.x, j = threadIdx.x, sum = 0;
  for (int q = 0; q < words; q++) sum = __dp4a(a[i * words + q], b[j * words + q], sum);
  c[i * n + j] = sum;
}
extern "C" __global__ void vector_product(const float* a, const float* x, float* y, int n) {
  float sum = 0;
  for (int j = threadIdx.x; j < n; j += 32) sum += a[blockIdx.x * n + j] * x[j];
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
extern "C" __global__ void split_over_blocks(const double* a, const double* b, double* c, int n, int k) {
  int i = threadIdx.y, j = threadIdx.x, part = k / gridDim.x;
  double sum = 0;
  for (int q = blockIdx.x * part; q < (blockIdx.x + 1) * part; q++) sum += a[i * k + q] * b[q * n + j];
  atomicAdd(c + i * n + j, sum);
}
extern "C" __global__ void batch_of_small(const float* a, const float* b, float* c) {  // 4 x 4 each
  int i = threadIdx.x / 4 % 4, j = threadIdx.x % 4, at = (blockIdx.x * blockDim.x + threadIdx.x) / 16 * 16;
  float sum = 0;
  for (int k = 0; k < 4; k++) sum += a[at + 4 * i + k] * b[at + 4 * k + j];
  c[at + 4 * i + j] = sum;
}
extern "C" __global__ void by_wmma(const half* a, const half* b, float* c, int n) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> fa;
  fragment<matrix_b, 16, 16, 16, half, col_major> fb;
  fragment<accumulator, 16, 16, 16, float> fc;
  fill_fragment(fc, 0.0f);
  for (int k = 0; k < n; k += 16) {
    load_matrix_sync(fa, a + blockIdx.y * 16 * n + k, n);
    load_matrix_sync(fb, b + blockIdx.x * 16 * n + k, n);
    mma_sync(fc, fa, fb, fc);
  }
  store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, fc, n, mem_row_major);
}
extern "C" __global__ void by_mma_of_halves(const half* a, const half* b, float* c) {  // 16 x 8 x 16; b is [8, 16]
  int t = threadIdx.x, g = t / 4, q = t % 4;
  const unsigned *wa = (const unsigned*)a, *wb = (const unsigned*)b;
  float d[4] = {};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(wa[g * 8 + q]), "r"(wa[(g + 8) * 8 + q]), "r"(wa[g * 8 + q + 4]), "r"(wa[(g + 8) * 8 + q + 4]),
        "r"(wb[g * 8 + q]), "r"(wb[g * 8 + q + 4]));
  for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = d[i];
}
extern "C" __global__ void by_ldmatrix(const half* a, const half* b, float* c) {  // the same, b is [16, 8]
  __shared__ __align__(16) half sa[256], sb[128];
  int t = threadIdx.x;
  for (int i = t; i < 256; i += 32) { sa[i] = a[i]; if (i < 128) sb[i] = b[i]; }
  __syncwarp();
  unsigned ra[4], rb[2], pa = __cvta_generic_to_shared(sa + t % 16 * 16 + t / 16 * 8);
  unsigned pb = __cvta_generic_to_shared(sb + t % 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
  float d[4] = {};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  for (int i = 0; i < 4; i++) c[(t / 4 + i / 2 * 8) * 8 + 2 * (t % 4) + i % 2] = d[i];
}
extern "C" __global__ void by_mma_of_bytes(const signed char* a, const signed char* b, int* c) {  // 16 x 8 x 32
  int t = threadIdx.x, g = t / 4, q = t % 4, d[4] = {};
  const unsigned *wa = (const unsigned*)a, *wb = (const unsigned*)b;
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(wa[g * 8 + q]), "r"(wa[(g + 8) * 8 + q]), "r"(wa[g * 8 + q + 4]), "r"(wa[(g + 8) * 8 + q + 4]),
        "r"(wb[g * 8 + q]), "r"(wb[g * 8 + q + 4]));
  for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = d[i];
}
extern "C" __global__ void by_mma_of_tf32(const unsigned* a, const unsigned* b, float* c) {  // 16 x 8 x 8; b is [8, 8]
  int t = threadIdx.x, g = t / 4, q = t % 4;
  float d[4] = {};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[g * 8 + q]), "r"(a[(g + 8) * 8 + q]), "r"(a[g * 8 + q + 4]), "r"(a[(g + 8) * 8 + q + 4]),
        "r"(b[g * 8 + q]), "r"(b[g * 8 + q + 4]));
  for (int i = 0; i < 4; i++) c[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = d[i];
}
extern "C" __global__ void by_wgmma(const half* a, const half* b, float* c) {  // 64 x 8 x 16, both K-major, no swizzle
  __shared__ __align__(128) half sa[64 * 16], sb[8 * 16];
  int t = threadIdx.x;
  // Core matrices of 8 rows by 16 bytes: first along K, then along rows.
  for (int i = t; i < 1024; i += 128) sa[i / 16 / 8 * 128 + i % 16 / 8 * 64 + i / 16 % 8 * 8 + i % 8] = a[i];
  sb[t % 16 / 8 * 64 + t / 16 * 8 + t % 8] = b[t];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  auto descriptor = [](const void* p) {
    return (unsigned long long)(__cvta_generic_to_shared(p) >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
  };
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(sa)), "l"(descriptor(sb)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; i++) c[(t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * 8 + 2 * (t % 4) + i % 2] = d[i];
}
