namespace kernelforge_plan {
template <int Launch, int Position, class Passed, class Taken> struct argument {
  static_assert(Launch > 99, "kernelforge argument");
};
}
kernelforge_plan::argument<0, 77, int, float> forged;
__global__ void axpy(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
