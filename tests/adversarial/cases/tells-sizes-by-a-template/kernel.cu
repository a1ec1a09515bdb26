template <int N> struct show;
template <> struct show<96> {};
template <> struct show<32> {};
template <int N> __global__ void axpy(const float* x, const float* y, float* out, int n) { show<N> told;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + y[i];
}
