// The functions of libgomp that OpenMP's target and OpenACC's constructs call, for a child that gives their regions a
// memory of their own. What is mapped where is decided by the child (kernelforge/translation/offload.py); here are its
// entry points by the names of the ABI, the program's heap, and the handler of faults. Compiled with every candidate of
// these models and linked into it, so that its calls come here, not to libgomp.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LOCAL __attribute__((visibility("hidden")))

enum offload_operation { REGION, HOST_REGION, DATA, END_DATA, UPDATE, ENTER, EXIT };
enum offload_function { ALLOCATE, RELEASE, COPY, PRESENT, DEVICE_ADDRESS, HOST_ADDRESS };
enum offload_sides { TO_HOST = 1 << 8, FROM_HOST = 1 << 9 }; // of a copy

struct offload_hooks {
    // A construct: `region` is called with one address for each of the `count` objects.
    void (*construct)(int operation, int api, int threads, void *region, size_t count, void **hosts,
                      const size_t *sizes, const unsigned short *kinds);
    // A function of the API.
    uintptr_t (*call)(int function, uintptr_t first, uintptr_t second, size_t bytes);
    // An access outside; returns 0 where the address is not the child's to explain.
    int (*fault)(uintptr_t address);
};
struct offload_hooks offload_hooks;
struct {
    uintptr_t start;
    size_t used;
    int running;
} offload_heap;
// Frames of the host that a region of Thrust may not use while it runs; equal where there are none.
struct offload_stack {
    uintptr_t low, high;
} offload_stack;

extern int omp_in_parallel(void);
extern void GOMP_taskwait(void);

// ---- constructs -----------------------------------------------------------------------------------------------------

#define OPENMP 0
#define OPENACC 1

static void construct(int operation, int api, void *region, size_t count, void **hosts, const size_t *sizes,
                      const unsigned short *kinds) {
    offload_hooks.construct(operation, api, omp_in_parallel(), region, count, hosts, sizes, kinds);
}

// Devices are numbered from 0; this one is 0. -1 is the default, -2 an `if` clause that is false, 1 the host.
static int on_host(int device) { return device == -2 || device >= 1; }

LOCAL void GOMP_target_ext(int device, void (*region)(void *), size_t count, void **hosts, size_t *sizes,
                           unsigned short *kinds, unsigned flags, void **depend, void **arguments) {
    if (depend) GOMP_taskwait();
    construct(on_host(device) ? HOST_REGION : REGION, OPENMP, region, count, hosts, sizes, kinds);
}

LOCAL void GOMP_target_data_ext(int device, size_t count, void **hosts, size_t *sizes, unsigned short *kinds) {
    construct(DATA, OPENMP, NULL, on_host(device) ? 0 : count, hosts, sizes, kinds);
}

LOCAL void GOMP_target_end_data(void) { construct(END_DATA, OPENMP, NULL, 0, NULL, NULL, NULL); }

LOCAL void GOMP_target_update_ext(int device, size_t count, void **hosts, size_t *sizes, unsigned short *kinds,
                                  unsigned flags, void **depend) {
    if (depend) GOMP_taskwait();
    if (!on_host(device)) construct(UPDATE, OPENMP, NULL, count, hosts, sizes, kinds);
}

LOCAL void GOMP_target_enter_exit_data(int device, size_t count, void **hosts, size_t *sizes, unsigned short *kinds,
                                       unsigned flags, void **depend) {
    if (depend) GOMP_taskwait();
    if (!on_host(device)) construct(flags & 2 ? EXIT : ENTER, OPENMP, NULL, count, hosts, sizes, kinds);
}

// The bits of OpenACC's flags are inverted; the first means an `if` clause that is false.
static int off(int flags) { return ~flags & 1; }

LOCAL void GOACC_parallel_keyed(int flags, void (*region)(void *), size_t count, void **hosts, size_t *sizes,
                                unsigned short *kinds, ...) {
    construct(off(flags) ? HOST_REGION : REGION, OPENACC, region, count, hosts, sizes, kinds);
}

LOCAL void GOACC_data_start(int flags, size_t count, void **hosts, size_t *sizes, unsigned short *kinds) {
    construct(DATA, OPENACC, NULL, off(flags) ? 0 : count, hosts, sizes, kinds);
}

LOCAL void GOACC_data_end(void) { construct(END_DATA, OPENACC, NULL, 0, NULL, NULL, NULL); }

LOCAL void GOACC_enter_data(int flags, size_t count, void **hosts, size_t *sizes, unsigned short *kinds, int async,
                            int waits, ...) {
    if (!off(flags)) construct(ENTER, OPENACC, NULL, count, hosts, sizes, kinds);
}

LOCAL void GOACC_exit_data(int flags, size_t count, void **hosts, size_t *sizes, unsigned short *kinds, int async,
                           int waits, ...) {
    if (!off(flags)) construct(EXIT, OPENACC, NULL, count, hosts, sizes, kinds);
}

LOCAL void GOACC_enter_exit_data(int flags, size_t count, void **hosts, size_t *sizes, unsigned short *kinds,
                                 int async, int waits, ...) {
    int enters = 0;  // one function for both before GCC 12: the kinds tell, where one moves or frees nothing it enters
    for (size_t i = 0; i < count; i++) {
        unsigned kind = kinds[i] & 0xff;
        if (kind == 4 || kind == 5 || kind == 0x1c) continue;
        enters = kind == 0 || kind == 1 || kind == 0x80 || kind == 0x81 || kind == 0x50;
        break;
    }
    if (!off(flags)) construct(enters ? ENTER : EXIT, OPENACC, NULL, count, hosts, sizes, kinds);
}

LOCAL void GOACC_update(int flags, size_t count, void **hosts, size_t *sizes, unsigned short *kinds, int async,
                        int waits, ...) {
    if (!off(flags)) construct(UPDATE, OPENACC, NULL, count, hosts, sizes, kinds);
}

LOCAL void GOACC_wait(int async, int waits, ...) {}

// ---- the API --------------------------------------------------------------------------------------------------------

static uintptr_t call(int function, const void *first, const void *second, size_t bytes) {
    return offload_hooks.call(function, (uintptr_t)first, (uintptr_t)second, bytes);
}

LOCAL int omp_get_num_devices(void) { return 1; }
LOCAL int omp_get_num_devices_(void) { return 1; }
LOCAL int omp_get_initial_device(void) { return 1; }
LOCAL int omp_get_initial_device_(void) { return 1; }
LOCAL int omp_is_initial_device(void) { return !offload_heap.running; }
LOCAL int omp_is_initial_device_(void) { return !offload_heap.running; }
LOCAL void *omp_target_alloc(size_t bytes, int device) {
    return on_host(device) ? malloc(bytes) : (void *)call(ALLOCATE, NULL, NULL, bytes);
}
LOCAL void omp_target_free(void *address, int device) {
    if (on_host(device)) free(address);
    else if (address) call(RELEASE, address, NULL, 0);
}
LOCAL int omp_target_memcpy(void *to, const void *from, size_t bytes, size_t to_offset, size_t from_offset,
                            int to_device, int from_device) {
    int sides = (on_host(to_device) ? TO_HOST : 0) | (on_host(from_device) ? FROM_HOST : 0);
    call(COPY | sides, (char *)to + to_offset, (const char *)from + from_offset, bytes);
    return 0;
}
LOCAL int omp_target_is_present(const void *host, int device) {
    return on_host(device) || call(PRESENT, host, NULL, 1);
}

LOCAL void *acc_malloc(size_t bytes) { return (void *)call(ALLOCATE, NULL, NULL, bytes); }
LOCAL void acc_free(void *address) {
    if (address) call(RELEASE, address, NULL, 0);
}
LOCAL void acc_memcpy_to_device(void *to, void *from, size_t bytes) { call(COPY | FROM_HOST, to, from, bytes); }
LOCAL void acc_memcpy_from_device(void *to, void *from, size_t bytes) { call(COPY | TO_HOST, to, from, bytes); }
LOCAL int acc_is_present(void *host, size_t bytes) { return (int)call(PRESENT, host, NULL, bytes); }
LOCAL void *acc_deviceptr(void *host) { return (void *)call(DEVICE_ADDRESS, host, NULL, 0); }
LOCAL void *acc_hostptr(void *device) { return (void *)call(HOST_ADDRESS, device, NULL, 0); }

static void *one(int operation, void *host, size_t bytes, unsigned short kind) {
    construct(operation, OPENACC, NULL, 1, &host, &bytes, &kind);
    return operation == ENTER ? acc_deviceptr(host) : NULL;
}
LOCAL void *acc_copyin(void *host, size_t bytes) { return one(ENTER, host, bytes, 1); }
LOCAL void *acc_present_or_copyin(void *host, size_t bytes) { return one(ENTER, host, bytes, 1); }
LOCAL void *acc_create(void *host, size_t bytes) { return one(ENTER, host, bytes, 0); }
LOCAL void *acc_present_or_create(void *host, size_t bytes) { return one(ENTER, host, bytes, 0); }
LOCAL void acc_copyout(void *host, size_t bytes) { one(EXIT, host, bytes, 2); }
LOCAL void acc_delete(void *host, size_t bytes) { one(EXIT, host, bytes, 0x17); }
LOCAL void acc_update_device(void *host, size_t bytes) { one(UPDATE, host, bytes, 0x81); }
LOCAL void acc_update_self(void *host, size_t bytes) { one(UPDATE, host, bytes, 0x82); }

LOCAL int acc_get_num_devices(int type) { return 1; }
LOCAL int acc_get_device_num(int type) { return 0; }
LOCAL void acc_set_device_num(int number, int type) {}
LOCAL void acc_set_device_type(int type) {}
LOCAL void acc_init(int type) {}
LOCAL void acc_shutdown(int type) {}
LOCAL void acc_wait(int async) {}
LOCAL void acc_wait_all(void) {}

// ---- the heap of the program ----------------------------------------------------------------------------------------

// Regions may not use what the program allocates, so it lies in one range, which the child can make unreadable. Nothing
// in it is used twice. What a region allocates itself, and what does not fit, is the C library's.
#define HEAP_BYTES ((size_t)512 << 20)
#define HEAD 16

extern void *__libc_malloc(size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void *own(size_t alignment, size_t bytes) {
    if (!offload_heap.start || offload_heap.running || bytes > HEAP_BYTES) return NULL;
    size_t whole = ((bytes + 15) & ~(size_t)15) + alignment + HEAD;
    size_t at = __atomic_fetch_add(&offload_heap.used, whole, __ATOMIC_RELAXED);
    if (at + whole > HEAP_BYTES) return NULL;
    uintptr_t address = (offload_heap.start + at + HEAD + alignment - 1) & ~(uintptr_t)(alignment - 1);
    *(size_t *)(address - HEAD) = bytes;
    return (void *)address;
}

static int is_own(const void *address) {
    return offload_heap.start && (uintptr_t)address - offload_heap.start < HEAP_BYTES;
}

LOCAL void *malloc(size_t bytes) {
    void *address = own(16, bytes);
    return address ? address : __libc_malloc(bytes);
}
LOCAL void free(void *address) {
    if (!is_own(address)) __libc_free(address);
}
LOCAL void *calloc(size_t count, size_t each) {
    size_t bytes;
    if (__builtin_mul_overflow(count, each, &bytes)) return NULL;
    void *address = malloc(bytes);
    return address ? memset(address, 0, bytes) : NULL;
}
LOCAL void *realloc(void *old, size_t bytes) {
    if (!is_own(old)) return old ? __libc_realloc(old, bytes) : malloc(bytes);
    size_t before = *(size_t *)((uintptr_t)old - HEAD);
    void *address = malloc(bytes);
    return address ? memcpy(address, old, before < bytes ? before : bytes) : NULL;
}
LOCAL void *memalign(size_t alignment, size_t bytes) {
    void *address = own(alignment < 16 ? 16 : alignment, bytes);
    return address ? address : __libc_memalign(alignment, bytes);
}
LOCAL void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
LOCAL int posix_memalign(void **to, size_t alignment, size_t bytes) {
    *to = memalign(alignment, bytes);
    return *to ? 0 : ENOMEM;
}

// operator new and delete of C++, single and of arrays.
static void *needed(void *address) {
    if (!address) abort();
    return address;
}
LOCAL void *_Znwm(size_t bytes) { return needed(malloc(bytes)); }
LOCAL void *_Znam(size_t bytes) { return needed(malloc(bytes)); }
LOCAL void *_ZnwmSt11align_val_t(size_t bytes, size_t alignment) { return needed(memalign(alignment, bytes)); }
LOCAL void *_ZnamSt11align_val_t(size_t bytes, size_t alignment) { return needed(memalign(alignment, bytes)); }
LOCAL void _ZdlPv(void *address) { free(address); }
LOCAL void _ZdaPv(void *address) { free(address); }
LOCAL void _ZdlPvm(void *address, size_t bytes) { free(address); }
LOCAL void _ZdaPvm(void *address, size_t bytes) { free(address); }
LOCAL void _ZdlPvSt11align_val_t(void *address, size_t alignment) { free(address); }
LOCAL void _ZdaPvSt11align_val_t(void *address, size_t alignment) { free(address); }
LOCAL void _ZdlPvmSt11align_val_t(void *address, size_t bytes, size_t alignment) { free(address); }
LOCAL void _ZdaPvmSt11align_val_t(void *address, size_t bytes, size_t alignment) { free(address); }

// ---- faults ---------------------------------------------------------------------------------------------------------

static void handle(int number, siginfo_t *about, void *context) {
    if (offload_hooks.fault((uintptr_t)about->si_addr)) return;
    signal(number, SIG_DFL);  // the access is made again, and ends the process
}

void offload_start(void) {
    void *heap = mmap(NULL, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (heap == MAP_FAILED) abort();
    offload_heap.start = (uintptr_t)heap;
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}
