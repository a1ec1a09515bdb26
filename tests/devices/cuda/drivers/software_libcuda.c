/* A libcuda.so.1 in software: host memory, kernels that are recorded (one of them runs), graphs as lists, no GPU.
 * It is compiled against CUDA's own cuda.h, so structures and signatures are CUDA's. The stubs header holds every
 * other function of cuda.h as one that answers CUDA_ERROR_NOT_SUPPORTED. */
#include <cuda.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGUMENTS 16

/* --- what the test sees ------------------------------------------------------------------------------------- */

static char record_text[1 << 18];
static size_t record_length;
static char failing[64];
static CUresult failing_with;

const char *software_record(void) { return record_text; }
void software_forget(void) { record_length = 0, record_text[0] = 0; }
void software_fail(const char *function, int code) {
    snprintf(failing, sizeof failing, "%s", function);
    failing_with = (CUresult)code;
}

static void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record_length += vsnprintf(record_text + record_length, sizeof record_text - record_length, format, arguments);
    va_end(arguments);
}

static CUresult should_fail(const char *function) {
    if (strcmp(failing, function)) return CUDA_SUCCESS;
    failing[0] = 0;
    return failing_with;
}

#define ENTER(function) \
    do { \
        CUresult planned = should_fail(function); \
        if (planned) return planned; \
    } while (0)

/* --- errors ------------------------------------------------------------------------------------------------- */

static const struct { CUresult code; const char *name, *text; } errors[] = {
#define ERROR(code, text) {code, #code, text}
    ERROR(CUDA_SUCCESS, "no error"), ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"), ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"), ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "cluster misconfiguration"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static CUresult error_text(CUresult error, const char **text, int name) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return *text = name ? errors[i].name : errors[i].text, CUDA_SUCCESS;
    return *text = NULL, CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorName(CUresult error, const char **text) { return error_text(error, text, 1); }
CUresult cuGetErrorString(CUresult error, const char **text) { return error_text(error, text, 0); }

/* --- one GPU: a test's environment says in what it differs from an H100 with a driver of CUDA 13.0 -------------- */

static int context_object;

static int setting(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }

/* The driver's setuid helper makes the node of unified memory when CUDA is first started after a boot. */
CUresult cuInit(unsigned flags) {
    if (getenv("MAKES_NODE")) fclose(fopen(getenv("MAKES_NODE"), "w"));
    return setting("CUINIT", CUDA_SUCCESS);
}
CUresult cuDriverGetVersion(int *version) { return *version = setting("CUDA_VERSION", 13000), CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    return *device = ordinal, ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    return snprintf(name, length, getenv("MIG_NAME") ? "Software GPU MIG 1g.10gb" : "Software GPU"), CUDA_SUCCESS;
}
static void count_up(CUuuid *uuid, int first) {
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(first + i);
}
/* The second version gives a MIG instance's own UUID. CUDA 13's header gives it the name of the first. */
#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return count_up(uuid, 0xa0), CUDA_SUCCESS; }
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    return count_up(uuid, getenv("MIG") ? 0xc0 : 0xa0), CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) { return *bytes = (size_t)1 << 37, CUDA_SUCCESS; }
CUresult cuMemGetInfo(size_t *free, size_t *total) { return *free = 1 << 30, *total = (size_t)1 << 37, CUDA_SUCCESS; }
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    return *major = 9, *minor = 0, CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = setting("CAPABILITY", 9); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = setting("CAPABILITY_MINOR", 0); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = setting("COMPUTE_MODE", CU_COMPUTEMODE_DEFAULT); break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = setting("CLOCK_KHZ", 1980000); break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = setting("CLOCK_KHZ", 3201000); break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 6144; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 62914560; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 233472; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return *context = (CUcontext)&context_object, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *context) { return *context = (CUcontext)&context_object, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuProfilerStart(void) { return note("profiler on\n"), CUDA_SUCCESS; }
CUresult cuProfilerStop(void) { return note("profiler off\n"), CUDA_SUCCESS; }

/* --- modules: an image is text, one line per kernel (its arguments' sizes) or variable (its size) -------------- */

struct CUfunc_st { char name[64]; int count, sizes[MAX_ARGUMENTS], dynamic_shared, non_portable, unloaded; };
typedef struct { char name[64]; size_t bytes; unsigned char *data; } Variable;
struct CUmod_st { int functions, variables; struct CUfunc_st function[16]; Variable variable[16]; };

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER("cuModuleLoadData");
    const char *line = image;
    if (strncmp(line, "software\n", 9)) return CUDA_ERROR_INVALID_IMAGE;
    *module = calloc(1, sizeof **module);
    for (line = strchr(line, '\n') + 1; *line; line = strchr(line, '\n') + 1) {
        char kind[16], name[64];
        int used, size;
        if (sscanf(line, "%15s %63s%n", kind, name, &used) != 2) return CUDA_ERROR_INVALID_IMAGE;
        if (!strcmp(kind, "variable")) {
            Variable *variable = &(*module)->variable[(*module)->variables++];
            strcpy(variable->name, name);
            variable->bytes = strtoul(line + used, NULL, 10);
            variable->data = calloc(1, variable->bytes);
            continue;
        }
        struct CUfunc_st *function = &(*module)->function[(*module)->functions++];
        strcpy(function->name, name);
        function->dynamic_shared = 49152;
        for (line += used; *line == ' ' && sscanf(line, " %d%n", &size, &used) == 1; line += used)
            function->sizes[function->count++] = size;
    }
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    for (unsigned i = 0; i < count; i++) { /* Nothing to say in the logs that pycuda asks for. */
        if (options[i] == CU_JIT_INFO_LOG_BUFFER || options[i] == CU_JIT_ERROR_LOG_BUFFER) *(char *)values[i] = 0;
        if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            values[i] = NULL;
    }
    return cuModuleLoadData(module, image);
}
/* Its memory stays, so that a function that is launched after its module is gone can be refused, as on a GPU. */
CUresult cuModuleUnload(CUmodule module) {
    for (int i = 0; i < module->functions; i++) module->function[i].unloaded = 1;
    return note("unload\n"), CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    for (int i = 0; i < module->functions; i++)
        if (!strcmp(module->function[i].name, name)) return *function = &module->function[i], CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}
CUresult cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name) {
    for (int i = 0; i < module->variables; i++)
        if (!strcmp(module->variable[i].name, name))
            return *pointer = (CUdeviceptr)module->variable[i].data, *bytes = module->variable[i].bytes, CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    return *value = function->dynamic_shared, CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    note("attribute %s %d %d\n", function->name, attribute, value);
    if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) return function->non_portable = value, CUDA_SUCCESS;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > 232448) return CUDA_ERROR_INVALID_VALUE;
    return function->dynamic_shared = value, CUDA_SUCCESS;
}

/* --- work, now or into a capture --------------------------------------------------------------------------------- */

typedef struct Work {
    enum { FILL, COPY, KERNEL } kind;
    CUdeviceptr target, source;
    size_t bytes;
    int byte;
    CUfunction function;
    unsigned char arguments[MAX_ARGUMENTS][256];
    struct Work *next;
} Work;
struct CUgraph_st { Work *first, **end; };
struct CUstream_st { CUgraph graph; };
struct CUgraphExec_st { Work *first; };

static void run(const Work *work) {
    if (work->kind == FILL) memset((void *)work->target, work->byte, work->bytes);
    if (work->kind == COPY) memcpy((void *)work->target, (void *)work->source, work->bytes);
    if (work->kind == KERNEL && !strcmp(work->function->name, "add_one")) {
        uint32_t *values, count;
        memcpy(&values, work->arguments[0], 8), memcpy(&count, work->arguments[1], 4);
        for (uint32_t i = 0; i < count; i++) values[i]++;
    }
}

static CUresult put(CUstream stream, Work work) {
    if (!stream->graph) return run(&work), CUDA_SUCCESS;
    Work *kept = malloc(sizeof work);
    *kept = work, kept->next = NULL, *stream->graph->end = kept, stream->graph->end = &kept->next;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return *stream = calloc(1, sizeof **stream), CUDA_SUCCESS; }
CUresult cuStreamDestroy(CUstream stream) { return note("destroy stream\n"), free(stream), CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) { ENTER("cuStreamSynchronize"); return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    note("capture mode %d\n", mode);
    stream->graph = calloc(1, sizeof *stream->graph);
    stream->graph->end = &stream->graph->first;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    *graph = stream->graph, stream->graph = NULL;
    note("capture ends\n");
    ENTER("cuStreamEndCapture");
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    note("instantiate flags %llu\n", flags);
    ENTER("cuGraphInstantiate");
    return *exec = calloc(1, sizeof **exec), (*exec)->first = graph->first, CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { return note("destroy template\n"), free(graph), CUDA_SUCCESS; }
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { return note("upload\n"), CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec exec) { return note("destroy graph\n"), free(exec), CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    note("replay\n");
    for (Work *work = exec->first; work; work = work->next) run(work);
    return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **arguments) {
    if (function->unloaded) return CUDA_ERROR_INVALID_HANDLE;
    note("launch %s grid %u,%u,%u block %u,%u,%u shared %u", function->name, config->gridDimX, config->gridDimY,
         config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes);
    unsigned cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            note(" cluster %u,%u,%u", attribute->value.clusterDim.x, attribute->value.clusterDim.y,
                 attribute->value.clusterDim.z);
            cluster = attribute->value.clusterDim.x * attribute->value.clusterDim.y * attribute->value.clusterDim.z;
        } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            note(" cooperative %d", attribute->value.cooperative);
        else
            note(" attribute %d", attribute->id);
    }
    Work work = {.kind = KERNEL, .function = function};
    note(" arguments");
    for (int i = 0; i < function->count; i++) {
        memcpy(work.arguments[i], arguments[i], function->sizes[i]);
        note(" ");
        for (int j = 0; j < function->sizes[i]; j++) note("%02x", work.arguments[i][j]);
       
    }
    note("\n");
    if ((int)config->sharedMemBytes > function->dynamic_shared) return CUDA_ERROR_INVALID_VALUE;
    if (cluster > 8 && !function->non_portable) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return put(config->hStream, work);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    ENTER("cuLaunchKernelEx");
    return launch(config, function, arguments);
}
/* pycuda sets the block by a call of its own as well, and hands over one packed buffer instead of pointers. */
CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra) {
    ENTER("cuLaunchKernel");
    CUlaunchConfig config = {.gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = bx, .blockDimY = by,
                             .blockDimZ = bz, .sharedMemBytes = shared, .hStream = stream};
    void *pointers[MAX_ARGUMENTS];
    size_t offset = 0;
    if (!arguments && extra && extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        for (int i = 0; i < function->count; offset += function->sizes[i++]) {
            offset = (offset + function->sizes[i] - 1) / function->sizes[i] * function->sizes[i];
            pointers[i] = (char *)extra[1] + offset;
        }
        if (offset != *(size_t *)extra[3]) return CUDA_ERROR_INVALID_VALUE;
        arguments = pointers;
    }
    return launch(&config, function, arguments);
}

/* --- memory -------------------------------------------------------------------------------------------------------- */

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes) {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)1 << 37) return CUDA_ERROR_OUT_OF_MEMORY;
    return *pointer = (CUdeviceptr)aligned_alloc(256, (bytes + 255) / 256 * 256), note("allocate %zu\n", bytes), CUDA_SUCCESS;
}
/* Host memory has the same address for the device, as with unified addressing. */
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    ENTER("cuMemHostAlloc");
    return *pointer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), note("host %zu flags %u\n", bytes, flags), CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *pointer, unsigned flags) {
    ENTER("cuMemHostGetDevicePointer");
    return *device = (CUdeviceptr)pointer, CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void *pointer) { return note("free host\n"), free(pointer), CUDA_SUCCESS; }
CUresult cuMemFree(CUdeviceptr pointer) { return note("free\n"), free((void *)pointer), CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr target, const void *source, size_t bytes) {
    return memcpy((void *)target, source, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void *target, CUdeviceptr source, size_t bytes) {
    ENTER("cuMemcpyDtoH");
    return memcpy(target, (void *)source, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void *source, size_t bytes, CUstream stream) {
    return memcpy((void *)target, source, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void *target, CUdeviceptr source, size_t bytes, CUstream stream) {
    return memcpy(target, (void *)source, bytes), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
    return put(stream, (Work){.kind = COPY, .target = target, .source = source, .bytes = bytes});
}
CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char byte, size_t count, CUstream stream) {
    return put(stream, (Work){.kind = FILL, .target = target, .byte = byte, .bytes = count});
}

/* --- events: a tick is half a millisecond --------------------------------------------------------------------------- */

struct CUevent_st { int tick; };
static int ticks;
CUresult cuEventCreate(CUevent *event, unsigned flags) {
    return note("event flags %u\n", flags), *event = calloc(1, sizeof **event), CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) { return event->tick = ticks++, CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    return *ms = 0.5f * (end->tick - start->tick), CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) { return note("destroy event\n"), free(event), CUDA_SUCCESS; }

/* --- tensor maps: the map holds what it was made of ------------------------------------------------------------------ */

static void note_tensor(const char *what, CUtensorMapDataType type, cuuint32_t rank, const cuuint64_t *dims,
                        const cuuint64_t *strides) {
    note("%s %d rank %u dims", what, type, rank);
    for (unsigned i = 0; i < rank; i++) note(" %llu", (unsigned long long)dims[i]);
    note(" strides");
    for (unsigned i = 0; i + 1 < rank; i++) note(" %llu", (unsigned long long)strides[i]);
}

static CUresult encoded(CUtensorMap *map, void *address) {
    for (int i = 0; i < 16; i++) map->opaque[i] = i ? 0x0102030405060708ull * i : (cuuint64_t)address;
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    ENTER("cuTensorMapEncodeTiled");
    if ((uintptr_t)address % 16 || (uintptr_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
    note_tensor("tensor map type", type, rank, dims, strides);
    note(" box");
    for (unsigned i = 0; i < rank; i++) note(" %u", box[i]);
    note(" steps");
    for (unsigned i = 0; i < rank; i++) note(" %u", element_strides[i]);
    note(" interleave %d swizzle %d promotion %d fill %d\n", interleave, swizzle, promotion, fill);
    return encoded(map, address);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *dims, const cuuint64_t *strides, const int *lower, const int *upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *element_strides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    ENTER("cuTensorMapEncodeIm2col");
    if ((uintptr_t)address % 16 || (uintptr_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
    note_tensor("map of images type", type, rank, dims, strides);
    note(" lower");
    for (unsigned i = 0; i + 2 < rank; i++) note(" %d", lower[i]);
    note(" upper");
    for (unsigned i = 0; i + 2 < rank; i++) note(" %d", upper[i]);
    note(" channels %u pixels %u steps", channels, pixels);
    for (unsigned i = 0; i < rank; i++) note(" %u", element_strides[i]);
    note(" interleave %d swizzle %d promotion %d fill %d\n", interleave, swizzle, promotion, fill);
    return encoded(map, address);
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                     const cuuint64_t *dims, const cuuint64_t *strides, int lower, int upper,
                                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *element_strides,
                                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill) {
    ENTER("cuTensorMapEncodeIm2colWide");
    if ((uintptr_t)address % 16 || (uintptr_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
    note_tensor("wide map of images type", type, rank, dims, strides);
    note(" lower %d upper %d channels %u pixels %u steps", lower, upper, channels, pixels);
    for (unsigned i = 0; i < rank; i++) note(" %u", element_strides[i]);
    note(" interleave %d mode %d swizzle %d promotion %d fill %d\n", interleave, mode, swizzle, promotion, fill);
    return encoded(map, address);
}

/* --- how bindings find all that ---------------------------------------------------------------------------------------- */

static const struct { const char *name; void *function; } exported[] = {
#define EXPORT(name) {#name, (void *)name}
#include "exports.h"
    /* Without its suffix the name means the newer signature, from CUDA 12 on. */
    {"cuGraphInstantiate", (void *)cuGraphInstantiateWithFlags},
    {"cuDeviceGetUuid", (void *)cuDeviceGetUuid_v2},
};

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    *function = NULL;
    for (size_t i = 0; i < sizeof exported / sizeof *exported; i++)
        if (!strcmp(exported[i].name, symbol)) *function = exported[i].function;
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
