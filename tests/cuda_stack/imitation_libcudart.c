/* A libcudart.so.13 on which a CUDA build of torch makes, copies and frees tensors, and whose kernels do nothing.

   Memory of the device is memory of the host, full of zeros. Streams are idle, events have the host's time, and a
   captured graph is empty. As NVIDIA's own, it starts the driver at the first question for a device, and refuses it in
   a process that was forked after that. Functions that are not here return 801 (cudaErrorNotSupported): machine.py
   makes them by the names in NVIDIA's library. It is compiled against NVIDIA's header. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pid_t started_in;

static cudaError_t start(void) {
  if (!started_in) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    if (init == NULL) return cudaErrorInsufficientDriver;
    if (init(0)) return cudaErrorNoDevice;
    started_in = getpid();
  }
  return started_in == getpid() ? cudaSuccess : cudaErrorInitializationError;
}

/* Devices */
cudaError_t cudaGetDeviceCount(int *count) { cudaError_t error = start(); *count = !error; return error; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidDevice : cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute == cudaDevAttrComputeCapabilityMinor ? 0 : 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  (void)device; /* those of an H100 */
  *properties = (struct cudaDeviceProp){
      .name = "Imitation GPU", .major = 9, .totalGlobalMem = (size_t)8 << 30, .warpSize = 32, .multiProcessorCount = 132,
      .maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64}, .maxGridSize = {2147483647, 65535, 65535},
      .maxThreadsPerMultiProcessor = 2048, .sharedMemPerBlock = 48 << 10, .sharedMemPerBlockOptin = 227 << 10,
      .sharedMemPerMultiprocessor = 228 << 10, .regsPerBlock = 65536, .regsPerMultiprocessor = 65536,
      .l2CacheSize = 50 << 20, .unifiedAddressing = 1,
  };
  return cudaSuccess;
}

/* Errors */
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t error) { (void)error; return "cudaError"; }
const char *cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNotSupported          ? "operation not supported"
         : error == cudaErrorInitializationError ? "initialization error"
                                                 : "an error of the imitated runtime";
}

/* Memory */
cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  cudaError_t error = start();
  if (error) return error;
  size_t whole = (bytes + 511) / 512 * 512;
  *pointer = memset(aligned_alloc(512, whole), 0, whole);
  return cudaSuccess;
}
cudaError_t cudaFree(void *pointer) { free(pointer); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *free_bytes = (size_t)7 << 30, *total = (size_t)8 << 30;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)kind, (void)stream;
  memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  (void)stream;
  memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  *attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeDevice, .devicePointer = (void *)pointer};
  return cudaSuccess;
}

/* Streams and events */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  (void)flags, (void)priority;
  *stream = calloc(1, 8);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { (void)stream; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { (void)stream; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  (void)stream;
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  (void)id, (void)graph, (void)nodes, (void)edges, (void)count;
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { (void)mode; return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(struct timespec));
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)stream;
  clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  (void)flags;
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { (void)event; return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { (void)event; return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  struct timespec a = *(struct timespec *)from, b = *(struct timespec *)to;
  *ms = (float)((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
  return cudaSuccess;
}

/* Kernels, and how the compiler's code registers and launches them */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  (void)function;
  *attributes = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .binaryVersion = 90, .numRegs = 32};
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t shared, unsigned flags) {
  (void)function, (void)threads, (void)shared, (void)flags;
  *blocks = 4;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
  (void)function, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *launch, const void *function, void **arguments) {
  (void)launch, (void)function, (void)arguments;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
static struct { dim3 grid, block; size_t shared; void *stream; } configuration;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  configuration.grid = grid, configuration.block = block;
  configuration.shared = shared, configuration.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = configuration.grid, *block = configuration.block;
  *shared = configuration.shared, *(void **)stream = configuration.stream;
  return cudaSuccess;
}
static void *module;
void **__cudaRegisterFatBinary(void *image) { (void)image; return &module; }
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) { (void)handle; return 1; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
  (void)name, (void)version, (void)flags;
  *function = NULL;
  if (found) *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
