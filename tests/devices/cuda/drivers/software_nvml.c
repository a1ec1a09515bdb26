/* A libnvidia-ml.so.1 in software: two GPUs alike, or what the environment says. nvml.h is in no wheel, so the
 * signatures are those of NVIDIA's NVML API reference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
typedef int Return;
typedef struct { char uuid[64]; } *Device;

static int started;
static char uuids[2][64] = {"GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf", "GPU-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf"};

static int starts; /* How often NVML was started in all. */

static int set(const char *name) { return getenv(name) != NULL; }
static int setting(const char *name, int otherwise) { return set(name) ? atoi(getenv(name)) : otherwise; }

const char *nvmlErrorString(Return code) { return code == GPU_IS_LOST ? "GPU is lost" : "failed"; }
Return nvmlInitWithFlags(unsigned flags) {
    if (set("NO_DRIVER")) return DRIVER_NOT_LOADED;
    return starts++, started++, SUCCESS;
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { return started--, SUCCESS; }
int software_started(void) { return started; }
int software_starts(void) { return starts; }

Return nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return snprintf(version, length, "580.159.03"), SUCCESS;
}
Return nvmlSystemGetCudaDriverVersion(int *version) { return *version = setting("NVML_CUDA", 13000), SUCCESS; }
Return nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, SUCCESS; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if (index == 1 && set("NO_PERMISSION")) return NO_PERMISSION;
    return *device = (Device)uuids[index], SUCCESS;
}
Return nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    static char instance[64] = "MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf";
    if (!strcmp(instance, uuid)) return *device = (Device)instance, SUCCESS;
    for (int i = 0; i < 2; i++)
        if (!strcmp(uuids[i], uuid)) return *device = (Device)uuids[i], SUCCESS;
    return NOT_FOUND;
}
Return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device instance, Device *device) {
    return *device = (Device)uuids[0], SUCCESS;
}
Return nvmlDeviceGetComputeMode(Device device, int *mode) {
    return *mode = setting("COMPUTE_MODE", 0), set("NO_MODE") ? NOT_SUPPORTED : SUCCESS;
}
Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    return *major = setting("CAPABILITY", 9), *minor = setting("CAPABILITY_MINOR", 0), SUCCESS;
}
Return nvmlDeviceGetName(Device device, char *name, unsigned length) {
    int other = set("DIFFERENT") && (char *)device == uuids[1];
    return snprintf(name, length, other ? "Other GPU" : "NVML GPU"), SUCCESS;
}
Return nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    return snprintf(uuid, length, "%s", device->uuid), SUCCESS;
}
Return nvmlDeviceGetMemoryInfo(Device device, unsigned long long *memory) {
    return memory[0] = 1ull << 37, memory[1] = 1ull << 36, memory[2] = 1ull << 36, set("NO_MEMORY") ? NOT_SUPPORTED : SUCCESS;
}
Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    return *current = *pending = set("SPLIT"), set("NO_MIG") ? NOT_SUPPORTED : SUCCESS;
}
/* An instance has no clocks of its own. */
Return nvmlDeviceGetClockInfo(Device device, int type, unsigned *mhz) {
    if (device->uuid[0] == 'M') return NOT_SUPPORTED;
    if (set("LOST")) return GPU_IS_LOST;
    return *mhz = type == 1 ? 1755 : type == 2 ? 3201 : 0, SUCCESS;
}
Return nvmlDeviceGetTemperature(Device device, int sensor, unsigned *degrees) { return *degrees = 41, SUCCESS; }
Return nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
    return *milliwatts = 123456, set("NO_POWER") ? NOT_SUPPORTED : SUCCESS;
}
Return nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules) {
    if (set("LOST")) return GPU_IS_LOST;
    return *millijoules = 987654321, set("NO_POWER") ? NOT_SUPPORTED : SUCCESS;
}
Return nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons) {
    return *reasons = 0x1 | 0x4 | 0x20, SUCCESS;
}
