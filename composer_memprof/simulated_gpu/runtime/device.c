/* The simulated device: its properties, and errors. */

#include "simulated_gpu.h"

static __thread int device;
static __thread int last_error;

static struct cudaDeviceProp known; /* the device's properties, once they were asked for */

/* A forked process that has not used the device may simulate another one. */
static void in_child(void) { known.totalGlobalMem = 0; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, in_child); }

int current_device(void) { return device; }

int fail(int error) { last_error = error; return error; }

static struct cudaDeviceProp *properties(void) {
  if (!known.totalGlobalMem) {
    struct cudaDeviceProp p = {0};
    text_figure("name", p.name, sizeof p.name);
    p.major = figure("major");
    p.minor = figure("minor");
    p.multiProcessorCount = figure("multiprocessors");
    p.maxThreadsPerMultiProcessor = figure("threads_per_multiprocessor");
    p.sharedMemPerBlock = figure("shared_memory_per_block");
    p.sharedMemPerBlockOptin = figure("shared_memory_per_block_optin");
    p.sharedMemPerMultiprocessor = figure("shared_memory_per_multiprocessor");
    p.l2CacheSize = figure("l2_cache");
    p.memoryBusWidth = figure("memory_bus_width");
    p.maxBlocksPerMultiProcessor = figure("blocks_per_multiprocessor");
    /* The same in every device since Volta. */
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 2147483647;
    p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.regsPerBlock = p.regsPerMultiprocessor = 65536;
    p.totalConstMem = 65536;
    p.textureAlignment = p.surfaceAlignment = 512;
    p.concurrentKernels = p.unifiedAddressing = p.managedMemory = p.streamPrioritiesSupported = 1;
    p.cooperativeLaunch = 1;
    p.asyncEngineCount = 3;
    p.totalGlobalMem = figure("total_memory");
    known = p;
  }
  return &known;
}

int cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  *p = *properties();
  p->pciBusID = number_on_machine(d) + 1;
  OK;
}
int cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int d) { return cudaGetDeviceProperties(p, d); }

int cudaDeviceGetAttribute(int *value, int attribute, int d) {
  const struct cudaDeviceProp *p = properties();
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p->maxThreadsPerBlock; OK;
    case cudaDevAttrMaxBlockDimX: *value = p->maxThreadsDim[0]; OK;
    case cudaDevAttrMaxBlockDimY: *value = p->maxThreadsDim[1]; OK;
    case cudaDevAttrMaxBlockDimZ: *value = p->maxThreadsDim[2]; OK;
    case cudaDevAttrMaxGridDimX: *value = p->maxGridSize[0]; OK;
    case cudaDevAttrMaxGridDimY: *value = p->maxGridSize[1]; OK;
    case cudaDevAttrMaxGridDimZ: *value = p->maxGridSize[2]; OK;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p->sharedMemPerBlock; OK;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p->sharedMemPerBlockOptin; OK;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p->sharedMemPerMultiprocessor; OK;
    case cudaDevAttrWarpSize: *value = p->warpSize; OK;
    case cudaDevAttrMaxRegistersPerBlock: *value = p->regsPerBlock; OK;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p->regsPerMultiprocessor; OK;
    case cudaDevAttrMultiProcessorCount: *value = p->multiProcessorCount; OK;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p->maxThreadsPerMultiProcessor; OK;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p->maxBlocksPerMultiProcessor; OK;
    case cudaDevAttrL2CacheSize: *value = p->l2CacheSize; OK;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p->memoryBusWidth; OK;
    case cudaDevAttrComputeCapabilityMajor: *value = p->major; OK;
    case cudaDevAttrComputeCapabilityMinor: *value = p->minor; OK;
    /* Some programs estimate times with the clocks, in kHz. Nothing here takes time, so all devices have the same. */
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1500000; OK;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; OK;
    case 102: *value = 1; OK; /* virtual memory, which expandable segments need */
    default: *value = 0; OK;
  }
}

int cudaGetDeviceCount(int *count) {
  *count = devices_seen();
  return *count ? 0 : fail(cudaErrorNoDevice);
}
int cudaGetDevice(int *d) { *d = device; OK; }
int cudaSetDevice(int d) {
  if (d < 0 || d >= devices_seen()) return fail(cudaErrorInvalidDevice);
  device = d;
  OK;
}
int cudaDriverGetVersion(int *version) { *version = CUDA_VERSION; OK; }
int cudaRuntimeGetVersion(int *version) { *version = CUDA_VERSION; OK; }
int cudaGetLastError(void) { int error = last_error; last_error = 0; return error; }
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(int error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotSupported: return "operation not supported on a simulated GPU";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
    default: return "an error of the simulated GPU";
  }
}
const char *cudaGetErrorName(int error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    default: return "cudaError";
  }
}
int cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = a != b; OK; }
int cudaDeviceGetPCIBusId(char *id, int size, int d) {
  snprintf(id, size, "0000:%02x:00.0", number_on_machine(d) + 1);
  OK;
}
NOTHING(cudaDeviceEnablePeerAccess) NOTHING(cudaProfilerStart) NOTHING(cudaProfilerStop)
