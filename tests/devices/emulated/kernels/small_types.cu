// Numbers of 16 and of 8 bits.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

extern "C" __global__ void half_axpy(const half2* x, half2* y, float a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = __hfma2(__float2half2_rn(a), x[i], y[i]);
}
extern "C" __global__ void half_sum(const half* x, float* y) {
  float v = __half2float(x[blockIdx.x * 32 + threadIdx.x]);
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
extern "C" __global__ void half_relu_and_order(const half* x, half* y, unsigned char* greater) {
  int i = threadIdx.x;
  y[i] = __hmax(x[i], __float2half(0.0f));
  greater[i] = __hgt(x[i], x[(i + 1) % blockDim.x]);
}
extern "C" __global__ void bfloat_product(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* z) {
  z[threadIdx.x] = __hmul(x[threadIdx.x], y[threadIdx.x]);
}
extern "C" __global__ void to_bfloat(const float* x, __nv_bfloat16* y) {
  y[threadIdx.x] = __float2bfloat16(x[threadIdx.x]);
}
extern "C" __global__ void through_fp8(const float* x, unsigned char* bits, float* back) {
  __nv_fp8_e4m3 v(x[threadIdx.x]);
  bits[threadIdx.x] = v.__x;
  back[threadIdx.x] = float(v);
}
extern "C" __global__ void quantize(const float* x, signed char* y, float* scale, int n) {
  float m = 0;
  for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, fabsf(x[blockIdx.x * n + i]));
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  float s = m / 127.0f;
  for (int i = threadIdx.x; i < n; i += 32)
    y[blockIdx.x * n + i] = (signed char)__float2int_rn(x[blockIdx.x * n + i] / s);
  if (threadIdx.x == 0) scale[blockIdx.x] = s;
}
extern "C" __global__ void nibbles(const unsigned* packed, const float* scale, float* y) {
  unsigned v = packed[threadIdx.x];
  for (int k = 0; k < 8; k++) y[8 * threadIdx.x + k] = ((int)(v >> 4 * k & 15) - 8) * scale[threadIdx.x];
}
extern "C" __global__ void half_integers(const half* x, short* nearest, short* down, half* back) {
  int i = threadIdx.x;
  nearest[i] = __half2short_rn(x[i]);
  down[i] = __half2short_rd(x[i]);
  back[i] = __short2half_rn(nearest[i]);
}
