// The part of CUDA's runtime API that a host program of the C lane may call. Memory and launches are functions of the
// child that loads the program (kernelforge/translation/host_runtime.py); kernels run on the device, not here.
#include <algorithm>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>

#include <math.h>
#include <stdlib.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

using std::max;
using std::min;

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Vector types of the device, by element and alignment, with the functions that make them.
#define HOST_RUNTIME_VECTOR2(name, element, bytes)                                                                 \
    struct alignas(bytes) name { element x, y; };                                                                  \
    static inline name make_##name(element x, element y) { return {x, y}; }
#define HOST_RUNTIME_VECTOR3(name, element, bytes)                                                                 \
    struct alignas(bytes) name { element x, y, z; };                                                               \
    static inline name make_##name(element x, element y, element z) { return {x, y, z}; }
#define HOST_RUNTIME_VECTOR4(name, element, bytes)                                                                 \
    struct alignas(bytes) name { element x, y, z, w; };                                                            \
    static inline name make_##name(element x, element y, element z, element w) { return {x, y, z, w}; }
HOST_RUNTIME_VECTOR2(float2, float, 8)
HOST_RUNTIME_VECTOR3(float3, float, 4)
HOST_RUNTIME_VECTOR4(float4, float, 16)
HOST_RUNTIME_VECTOR2(double2, double, 16)
HOST_RUNTIME_VECTOR3(double3, double, 8)
HOST_RUNTIME_VECTOR4(double4, double, 16)
HOST_RUNTIME_VECTOR2(int2, int, 8)
HOST_RUNTIME_VECTOR3(int3, int, 4)
HOST_RUNTIME_VECTOR4(int4, int, 16)
HOST_RUNTIME_VECTOR2(uint2, unsigned, 8)
HOST_RUNTIME_VECTOR3(uint3, unsigned, 4)
HOST_RUNTIME_VECTOR4(uint4, unsigned, 16)

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4,
};

typedef struct host_runtime_stream *cudaStream_t;
typedef struct host_runtime_event *cudaEvent_t;

extern "C" {
struct host_runtime_hooks {
    void *(*allocate)(size_t bytes, int visible);
    int (*release)(void *address);
    int (*copy)(void *to, const void *from, size_t bytes, int kind);
    int (*set)(void *address, int byte, size_t bytes);
    // `kinds`: 1 int, 2 long long, 3 float, 4 double, 0 another type; 16 is added for a pointer to it.
    int (*launch)(const char *kernel, const unsigned *sizes, size_t shared, int count, const int *kinds,
                  const void *const *values);
};
host_runtime_hooks host_runtime;
}

static cudaError_t host_runtime_status = cudaSuccess;

static inline cudaError_t host_runtime_checked(int code) {
    if (code) host_runtime_status = (cudaError_t)code;
    return (cudaError_t)code;
}

// ---- launches -------------------------------------------------------------------------------------------------------

struct host_runtime_configuration {
    dim3 grid, block;
    size_t shared;
    host_runtime_configuration(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr)
        : grid(grid), block(block), shared(shared) {}
};

template <class T>
constexpr int host_runtime_kind() {
    if constexpr (std::is_pointer_v<T>) {
        using element = std::remove_cv_t<std::remove_pointer_t<T>>;
        if constexpr (std::is_void_v<element> || std::is_pointer_v<element>) return 16;
        else return 16 + host_runtime_kind<element>();
    } else if constexpr (std::is_same_v<T, float>) return 3;
    else if constexpr (std::is_same_v<T, double>) return 4;
    else if constexpr (std::is_integral_v<T> && sizeof(T) == 4) return 1;
    else if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return 2;
    else return 0;
}

template <class T>
T host_runtime_converted(T value) { return value; }

template <class... P, class... A>
void host_runtime_launch(const char *kernel, void (*)(P...), host_runtime_configuration with, A... given) {
    std::tuple<P...> arguments(host_runtime_converted<P>(given)...);
    const unsigned sizes[] = {with.grid.x, with.grid.y, with.grid.z, with.block.x, with.block.y, with.block.z};
    const int kinds[] = {host_runtime_kind<P>()..., 0};
    std::apply(
        [&](const auto &...each) {
            const void *const values[] = {(const void *)&each..., nullptr};
            host_runtime_checked(
                host_runtime.launch(kernel, sizes, with.shared, (int)sizeof...(P), kinds, values));
        },
        arguments);
}

// ---- functions of the API ---------------------------------------------------------------------------------------------

static inline cudaError_t host_runtime_allocated(void **to, size_t bytes, int visible) {
    *to = host_runtime.allocate(bytes, visible);
    return host_runtime_checked(*to ? cudaSuccess : cudaErrorMemoryAllocation);
}

template <class T>
cudaError_t cudaMalloc(T **to, size_t bytes) { return host_runtime_allocated((void **)to, bytes, 0); }
template <class T>
cudaError_t cudaMallocManaged(T **to, size_t bytes, unsigned = 1) {
    return host_runtime_allocated((void **)to, bytes, 1);
}
template <class T>
cudaError_t cudaMallocHost(T **to, size_t bytes, unsigned = 0) { return host_runtime_allocated((void **)to, bytes, 1); }
template <class T>
cudaError_t cudaHostAlloc(T **to, size_t bytes, unsigned) { return host_runtime_allocated((void **)to, bytes, 1); }

#define cudaMemAttachGlobal 1
#define cudaHostAllocDefault 0

static inline cudaError_t cudaFree(void *address) { return host_runtime_checked(host_runtime.release(address)); }
static inline cudaError_t cudaFreeHost(void *address) { return cudaFree(address); }
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    return host_runtime_checked(host_runtime.copy(to, from, bytes, kind));
}
static inline cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpy(to, from, bytes, kind);
}
static inline cudaError_t cudaMemset(void *address, int byte, size_t bytes) {
    return host_runtime_checked(host_runtime.set(address, byte, bytes));
}
static inline cudaError_t cudaMemsetAsync(void *address, int byte, size_t bytes, cudaStream_t = nullptr) {
    return cudaMemset(address, byte, bytes);
}

static inline cudaError_t cudaGetLastError() {
    cudaError_t status = host_runtime_status;
    host_runtime_status = cudaSuccess;
    return status;
}
static inline cudaError_t cudaPeekAtLastError() { return host_runtime_status; }
static inline const char *cudaGetErrorString(cudaError_t status) {
    switch (status) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        default: return "invalid configuration argument";
    }
}
static inline const char *cudaGetErrorName(cudaError_t status) { return cudaGetErrorString(status); }

// Every call has ended when it returns, so there is nothing to wait for, and no time to measure.
static inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
static inline cudaError_t cudaThreadSynchronize() { return cudaSuccess; }
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
static inline cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    *stream = nullptr;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaEventCreate(cudaEvent_t *event) {
    *event = nullptr;
    return cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
static inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
