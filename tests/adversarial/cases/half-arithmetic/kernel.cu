#include <cuda_fp16.h>
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __half2float(__hfma(__float2half(2.0f), __float2half(x[i]), __float2half(y[i])));
}
