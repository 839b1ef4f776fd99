/* Kernels: launched, but not run. */

#include "simulated_gpu.h"

static __thread struct { Size grid, block; size_t shared; void *stream; } call;

unsigned __cudaPushCallConfiguration(Size grid, Size block, size_t shared, void *stream) {
  call.grid = grid;
  call.block = block;
  call.shared = shared;
  call.stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(Size *grid, Size *block, size_t *shared, void **stream) {
  *grid = call.grid;
  *block = call.block;
  *shared = call.shared;
  *stream = call.stream;
  OK;
}

static int launch(const void *function, void **arguments, void *stream) {
  kernel_launched(stream);
  if (!write_if_it_counts(function, arguments)) forget_what_was_written();
  OK;
}
int cudaLaunchKernel(const void *function, Size grid, Size block, void **arguments, size_t shared, void *stream) {
  return launch(function, arguments, stream);
}
int cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  return launch(function, arguments, config->stream);
}
int cudaLaunchCooperativeKernel(const void *function, Size grid, Size block, void **arguments, size_t shared,
                                void *stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
/* CUDA 13: kernels have handles. */
int __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; OK; }
int __cudaLaunchKernel(void *kernel, Size grid, Size block, void **arguments, size_t shared, void *stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *name) {
  remember_if_it_counts(function, name);
}
void __cudaRegisterVar() {}
char __cudaInitModule(void **handle) { return 1; }

/* Figures of a kernel are in its compiled code, which is not read: these are usual ones. */
int cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  memset(attributes, 0, sizeof *attributes);
  attributes->binaryVersion = attributes->ptxVersion = figure("major") * 10 + figure("minor");
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  OK;
}
static int blocks_at_once(int *blocks, int threads) {
  int most = figure("threads_per_multiprocessor") / (threads > 0 ? threads : 1);
  int limit = figure("blocks_per_multiprocessor");
  *blocks = most < 1 ? 1 : most < limit ? most : limit;
  OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                           size_t shared, unsigned flags) {
  return blocks_at_once(blocks, threads);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
  return blocks_at_once(blocks, threads);
}
NOTHING(cudaFuncSetAttribute) NOTHING(cudaKernelSetAttributeForDevice)
