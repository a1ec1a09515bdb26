// Independent chains of one instruction in every thread: the rate of its pipe.

template <typename T, typename Step>
__device__ __forceinline__ void chains(int* out, int rounds, Step step) {
    T v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = (T)((int)threadIdx.x + k);
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < 8; u++)
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = step(v[k]);
    }
    T sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[k];
    if (sum == (T)-12345) out[0] = 1;
}

extern "C" __global__ void fma_fp32(int* out, int rounds, float p, float q) {
    chains<float>(out, rounds, [=](float v) { return fmaf(v, p, q); });
}

extern "C" __global__ void fma_fp64(int* out, int rounds, double p, double q) {
    chains<double>(out, rounds, [=](double v) { return fma(v, p, q); });
}

extern "C" __global__ void mad_int(int* out, int rounds, int p, int q) {
    chains<int>(out, rounds, [=](int v) { return v * p + q; });
}

extern "C" __global__ void special(int* out, int rounds) {
    chains<float>(out, rounds, [](float v) {
        asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
        return v;
    });
}
