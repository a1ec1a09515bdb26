// What nvcc has without an include, for Thrust's candidates: the marks of functions, and CUDA's runtime as far as memory
// and waiting go.
#pragma once

#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define KERNELFORGE_HOST_FRAMES                                                                                        \
    alignas(4096) char kernelforge_page[4096];                                                                         \
    asm volatile("" : : "r"(kernelforge_page) : "memory");                                                             \
    kernelforge::host_frames_below(kernelforge_page)

#include <kernelforge_thrust_system.h>

enum cudaError_t { cudaSuccess = 0 };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };

template <class T>
cudaError_t cudaMalloc(T **address, std::size_t bytes) {
    *address = static_cast<T *>(omp_target_alloc(bytes ? bytes : 1, kernelforge::device));
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *address) {
    omp_target_free(address, kernelforge::device);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void *to, const void *from, std::size_t bytes, cudaMemcpyKind kind) {
    const int to_side = kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost;
    const int from_side = kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice;
    omp_target_memcpy(to, from, bytes, 0, 0, to_side, from_side);
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return "no error"; }
