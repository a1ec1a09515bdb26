// Updates of global memory. Thread i of a warp updates word `spread[i]` of its warp's line, an offset that the compiler
// does not know: it would add the values of a warp up first, for one update of an address that all its threads share.

extern "C" __global__ void set_spread(int* spread, int step) { spread[threadIdx.x] = (int)threadIdx.x * step; }

template <typename T>
__device__ __forceinline__ void update(T* words, const int* spread, int rounds, int lines) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    T* own = words + warp % lines * 32 + spread[threadIdx.x % 32];
    for (int r = 0; r < rounds; r++) atomicAdd(own, (T)(1 + (threadIdx.x & 1)));
}

extern "C" __global__ void add_ints(int* words, const int* spread, int rounds, int lines) {
    update(words, spread, rounds, lines);
}

extern "C" __global__ void add_floats(float* words, const int* spread, int rounds, int lines) {
    update(words, spread, rounds, lines);
}
