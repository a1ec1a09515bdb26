/* A libcuda.so.1 that asks the operating system for what the real one asks for in cuInit, and has no GPU behind it.

   Each step that the system refuses is written to the log, and cuInit then returns 304 (CUDA_ERROR_OPERATING_SYSTEM), as
   the real one does. Where all are allowed it returns 100 (CUDA_ERROR_NO_DEVICE), or 0 with IMITATION_GPUS=1 in the
   environment, which only processes outside the jail have, or where CUDA_VISIBLE_DEVICES names its GPU, as for processes
   in the jail. With IMITATION_COMPUTE_MODE=0 several processes may use the GPU, so that it is the default device. The log is the first device node of the driver: a process
   in a jail can write to it, and whoever holds the other end of that terminal reads along.

   Sources of the steps: a trace of cuInit by driver 580.159.04 on an H100 (November 2026); before that, published traces
   and denials of other sandboxes (snapd's cuda-support interface, gVisor's nvproxy, reports on Landlock sandboxes with
   drivers 570 and 580), and the driver's README, "/proc interface". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, OPERATING_SYSTEM = 304, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
static const char CONTROL[] = "/dev/nvidiactl";
static int started, gpus, result_of_start = NOT_INITIALIZED;

static int jailed(void) {
  char line[128];
  int value = 0;
  FILE *status = fopen("/proc/self/status", "re");
  if (status == NULL) return 1; /* a process outside a jail can read its own status */
  while (fgets(line, sizeof line, status))
    if (sscanf(line, "NoNewPrivs: %d", &value) == 1) break;
  fclose(status);
  return value;
}

static void record(const char *event, int error) {
  char line[256];
  int node = open(CONTROL, O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (node < 0) return;
  int length = snprintf(line, sizeof line, "%s %s %s\n", jailed() ? "jailed" : "free", event,
                        error ? strerrorname_np(error) : "ok");
  if (write(node, line, (size_t)length) != length) _exit(120); /* the log is the test's only witness */
  close(node);
}

static int step(const char *name, int worked) {
  if (!worked) record(name, errno);
  return worked;
}

static int readable(const char *path) {
  char text[4096];
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  int worked = read(file, text, sizeof text) >= 0;
  close(file);
  return worked;
}

static int optional(const char *path) { return readable(path) || errno == ENOENT; }

static int name_a_thread(const char *folder) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/task/%ld/comm", folder, syscall(SYS_gettid));
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666); /* as fopen(path, "w") does */
  if (file < 0) return 0;
  int worked = write(file, "cuda-EvtHandlr", 14) == 14;
  close(file);
  return worked;
}

static void *named_thread(void *worked) {
  char process[16];
  snprintf(process, sizeof process, "%d", (int)getpid());
  *(int *)worked = step("thread name through /proc/self/task", name_a_thread("self")) &&
                   step("thread name through /proc/PID/task", name_a_thread(process));
  return NULL;
}

static int drive_node(const char *path) {
  struct termios settings;
  int node = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (node < 0) return errno == ENOENT;
  int worked = ioctl(node, TCGETS, &settings) == 0;
  close(node);
  return worked;
}

static int wait_on_a_socket(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "cuda-uvmfd-4026531836-%d", (int)getpid());
  int end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (end < 0) return 0;
  int worked = bind(end, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) == 0 &&
               listen(end, 16) == 0;
  close(end);
  return worked;
}

static int memory_file(void) {
  int file = memfd_create("cuda", MFD_CLOEXEC);
  if (file < 0) return 0;
  int worked = ftruncate(file, 1 << 21) == 0;
  void *memory = worked ? mmap(NULL, 1 << 21, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  if (memory != MAP_FAILED) munmap(memory, 1 << 21);
  close(file);
  return worked && memory != MAP_FAILED;
}

static int reserve(void) {
  size_t terabyte = (size_t)1 << 40;
  void *space = mmap(NULL, terabyte, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return 0;
  munmap(space, terabyte);
  return 1;
}

static int start(void) {
  pthread_t thread;
  int named = 0, all = 1;
  if (access(CONTROL, F_OK) != 0) return NO_DEVICE;
  all &= step("open and drive /dev/nvidiactl", drive_node(CONTROL));
  all &= step("open and drive /dev/nvidia0", drive_node("/dev/nvidia0"));
  all &= step("open and drive /dev/nvidia-uvm", drive_node("/dev/nvidia-uvm"));
  all &= step("read /proc/driver/nvidia/params", optional("/proc/driver/nvidia/params"));
  all &= step("read /proc/devices", readable("/proc/devices"));
  all &= step("read /proc/self/maps", readable("/proc/self/maps"));
  all &= step("read /proc/self/status", readable("/proc/self/status"));
  all &= step("read the size of memory blocks", optional("/sys/devices/system/memory/block_size_bytes"));
  all &= step("read the list of processors", readable("/sys/devices/system/cpu/online"));
  all &= step("read /proc/cpuinfo", readable("/proc/cpuinfo"));
  all &= step("read the least address of mappings", optional("/proc/sys/vm/mmap_min_addr"));
  all &= step("read the list of memory nodes", optional("/sys/devices/system/node/online"));
  int created = pthread_create(&thread, NULL, named_thread, &named);
  errno = created;
  all &= step("start a thread", created == 0);
  if (created == 0) pthread_join(thread, NULL);
  all &= named;
  all &= step("wait on a local socket", wait_on_a_socket());
  all &= step("make a memory file", memory_file());
  all &= step("reserve a terabyte of addresses", reserve());
  if (!all) return OPERATING_SYSTEM;
  const char *setting = getenv("IMITATION_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  gpus = setting ? atoi(setting) : visible && strncmp(visible, "GPU-11111111-", 13) == 0;
  return gpus ? SUCCESS : NO_DEVICE;
}

int cuInit(unsigned flags) {
  (void)flags;
  if (!started) {
    result_of_start = start();
    started = 1;
    record(result_of_start == OPERATING_SYSTEM ? "cuInit refused" : "cuInit reached", 0);
  }
  return result_of_start;
}

int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = gpus; return started ? SUCCESS : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return !started ? NOT_INITIALIZED : ordinal < gpus ? SUCCESS : NO_DEVICE;
}
int cuDeviceGetName(char *name, int length, int device) { (void)device; snprintf(name, (size_t)length, "Imitation GPU"); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)8 << 30; return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  const char *mode = getenv("IMITATION_COMPUTE_MODE");
  /* compute capability 9.0; compute mode, of which 3 lets one process alone use the GPU */
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 20 ? (mode ? atoi(mode) : 3) : 1;
  return SUCCESS;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, 0x11 + device, 16); return SUCCESS; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }

int cuGetErrorName(int code, const char **text) {
  *text = code == SUCCESS            ? "CUDA_SUCCESS"
          : code == NO_DEVICE        ? "CUDA_ERROR_NO_DEVICE"
          : code == NOT_INITIALIZED  ? "CUDA_ERROR_NOT_INITIALIZED"
          : code == OPERATING_SYSTEM ? "CUDA_ERROR_OPERATING_SYSTEM"
                                     : NULL;
  return *text ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == NO_DEVICE          ? "no CUDA-capable device is detected"
          : code == OPERATING_SYSTEM ? "OS call failed or operation not supported on this OS"
                                     : NULL;
  return *text ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0, *active = 1;
  return SUCCESS;
}

/* What libraries link against and call with a GPU alone. */
#define WITH_A_GPU(name) int name(void) { return NOT_SUPPORTED; }
WITH_A_GPU(cuCtxGetCurrent) WITH_A_GPU(cuCtxSetCurrent) WITH_A_GPU(cuCtxGetLimit) WITH_A_GPU(cuCtxSetLimit)
WITH_A_GPU(cuDevicePrimaryCtxRetain) WITH_A_GPU(cuFuncGetAttribute) WITH_A_GPU(cuFuncSetAttribute)
WITH_A_GPU(cuFuncSetCacheConfig) WITH_A_GPU(cuModuleGetFunction) WITH_A_GPU(cuModuleLoadData)
WITH_A_GPU(cuPointerGetAttribute) WITH_A_GPU(cuPointerGetAttributes)

/* How the CUDA runtime finds all else: a function that is not above is not there. */
int cuGetExportTable(const void **table, const void *identifier) { (void)table; (void)identifier; return NOT_FOUND; }
static void *function(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  return library ? dlsym(library, name) : NULL;
}
int cuGetProcAddress(const char *name, void **address, int version, unsigned long long flags) {
  (void)version; (void)flags;
  return (*address = function(name)) ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags, int *found) {
  int status = cuGetProcAddress(name, address, version, flags);
  if (found) *found = status == SUCCESS ? 0 : 1;
  return status;
}
