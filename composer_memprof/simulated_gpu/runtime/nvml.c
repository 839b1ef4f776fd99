/* NVML, which torch asks for what else is on the device when memory runs out, and which monitors ask. */

#include "simulated_gpu.h"
#include <unistd.h>

enum { NO_SUCH = 6, TOO_SMALL = 7 };
typedef struct { unsigned pid; unsigned long long bytes; } Process;
typedef struct { unsigned long long total, free, used; } Memory;

/* A device's handle is its number on the machine and 1: NVML knows nothing of CUDA_VISIBLE_DEVICES. */
static int number(void *handle) { return (intptr_t)handle - 1; }
static size_t bytes_taken(void *handle) {
  int device = device_with_number(number(handle));
  return device < 0 ? 0 : bytes_in_use(device);
}
static int handle_of(long long device, void **handle) {
  if (device < 0 || device >= figure("devices")) return NO_SUCH;
  *handle = (void *)(intptr_t)(device + 1);
  OK;
}

NOTHING(nvmlInit) NOTHING(nvmlInit_v2) NOTHING(nvmlShutdown)
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_VERSION; OK; }
const char *nvmlErrorString(int error) { return error ? "not known to a simulated GPU" : "success"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = figure("devices"); OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return handle_of(index, handle); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
  unsigned domain, bus;
  return sscanf(id, "%x:%x", &domain, &bus) == 2 ? handle_of((long long)bus - 1, handle) : NO_SUCH;
}
int nvmlDeviceGetHandleByUUID(const char *id, void **handle) { return handle_of(0, handle); }
int nvmlDeviceGetUUID(void *handle, char *id, unsigned size) {
  snprintf(id, size, "GPU-00000000-0000-0000-0000-%012d", number(handle));
  OK;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned size) { text_figure("name", name, size); OK; }
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  memory->total = figure("total_memory");
  memory->free = bytes_for_use() - bytes_taken(handle);
  memory->used = memory->total - memory->free;
  OK;
}
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, Process *processes) {
  if (*count < 1) { *count = 1; return TOO_SMALL; }
  *count = 1;
  processes->pid = getpid();
  processes->bytes = figure("outside") + bytes_taken(handle);
  OK;
}
int nvmlDeviceGetP2PStatus(void *a, void *b, int index, int *status) { *status = 0; OK; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) { return NO_SUCH; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info) { return NO_SUCH; }
