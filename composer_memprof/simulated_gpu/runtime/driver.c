/* The driver: what torch, Triton and NVML's users look up by name. */

#include "simulated_gpu.h"
#include <dlfcn.h>

enum { INVALID_VALUE = 1, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

NOTHING(cuInit) NOTHING(cuCtxSetCurrent) NOTHING(cuFuncSetAttribute) NOTHING(cuFuncSetCacheConfig)
NOTHING(cuModuleUnload) NOTHING(cuLinkAddData_v2) NOTHING(cuCtxSetLimit)
int cuDeviceGet(int *device, int index) { *device = index; OK; }
int cuDeviceGetCount(int *count) { *count = devices_seen(); OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device); /* the numbers are the same */
}
int cuDriverGetVersion(int *version) { *version = CUDA_VERSION; OK; }
int cuCtxGetCurrent(void **context) { static int made; *context = &made; OK; }
int cuCtxGetDevice(int *device) { *device = current_device(); OK; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return cuCtxGetCurrent(context); }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; OK; }
int cuCtxGetLimit(size_t *bytes, int limit) { *bytes = 1 << 20; OK; } /* what kernels print goes through so much */
int cuStreamIsCapturing(void *stream, int *status) { return cudaStreamIsCapturing(stream, status); }
int cuGetErrorString(int error, const char **text) { *text = cudaGetErrorString(error); OK; }
int cuGetErrorName(int error, const char **text) { *text = cudaGetErrorName(error); OK; }

/* Code: made by nvrtc and Triton, loaded, launched and not run. */
static int made;
int cuModuleLoad(void **module, const char *path) { *module = &made; OK; }
int cuModuleLoadData(void **module, const void *image) { *module = &made; OK; }
int cuModuleLoadDataEx(void **module, const void *image) { *module = &made; OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = &made; OK; }
int cuLinkCreate_v2(unsigned count, void *options, void *values, void **state) { *state = &made; OK; }
int cuLinkComplete(void *state, void **code, size_t *bytes) { *code = &made; *bytes = sizeof made; OK; }
int cuLinkDestroy(void *state) { OK; }
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads in a block; registers; else bytes */
  OK;
}
static int launch(void *stream) {
  kernel_launched(stream);
  forget_what_was_written();
  OK;
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared, void *stream) {
  return launch(stream);
}
int cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared, void *stream) {
  return launch(stream);
}
/* The beginning of CUlaunchConfig. */
typedef struct { Size grid, block; unsigned shared; void *stream; } Configuration;
int cuLaunchKernelEx(const Configuration *configuration) { return launch(configuration->stream); }
int cuMemsetD32Async(void *to, unsigned value, size_t count, void *stream) {
  memory_set(stream, 4 * count);
  forget_what_was_written();
  OK;
}
int cuStreamWriteValue32(void *stream) { return launch(stream); }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
int cuOccupancyMaxActiveClusters(int *clusters) { *clusters = 1; OK; }
int cuTensorMapEncodeTiled(void *map) { memset(map, 0, 128); OK; }
int cuTensorMapEncodeIm2col(void *map) { memset(map, 0, 128); OK; }
int cuPointerGetAttribute(void *value, int attribute, void *address) {
  if (!is_on_device(address) && !is_pinned(address)) return INVALID_VALUE; /* Triton refuses the CPU's tensors so */
  if (attribute == 2) *(int *)value = 2;              /* the type of memory: a device's */
  else if (attribute == 3) *(void **)value = address; /* the address on the device */
  else return NOT_SUPPORTED;
  OK;
}
int cuMemGetAddressRange_v2(void **start, size_t *bytes, void *address) { return address_range(start, bytes, address); }
int cuMemGetAddressRange(void **start, size_t *bytes, void *address) { return address_range(start, bytes, address); }
/* NVRTC 13.2 calls it without asking whether it is there; none of NVIDIA's own tables is. */
int cuGetExportTable() { return NOT_SUPPORTED; }
int cuMemExportToShareableHandle() { return not_simulated("cuMemExportToShareableHandle", NOT_SUPPORTED); }
int cuMemImportFromShareableHandle() { return not_simulated("cuMemImportFromShareableHandle", NOT_SUPPORTED); }
int cuMemRetainAllocationHandle() { return not_simulated("cuMemRetainAllocationHandle", NOT_SUPPORTED); }
int cuMemGetAllocationPropertiesFromHandle() {
  return not_simulated("cuMemGetAllocationPropertiesFromHandle", NOT_SUPPORTED);
}

/* The function of this library that has the name, null without one. */
static void *function_named(const char *name) {
  static void *own;
  if (!own) {
    Dl_info info;
    dladdr(function_named, &info);
    own = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }
  return dlsym(own, name);
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *result) {
  *function = function_named(name);
  if (result) *result = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
  OK;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *result) {
  return cudaGetDriverEntryPoint(name, function, flags, result);
}
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *result) {
  *function = function_named(name);
  if (result) *result = *function ? 0 : 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
  return *function ? 0 : NOT_FOUND;
}
