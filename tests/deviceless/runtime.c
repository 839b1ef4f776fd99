/* CUDA's runtime without a device: its memory is the host's, and its kernels do nothing.

   torch's own CUDA allocator runs on it, with its pools, history, limits and out-of-memory errors, so that everything
   but numbers and kernels can be tested without a GPU. Preloaded, it replaces libcudart, the functions of cuBLAS that
   training calls, and the driver.

   DEVICELESS_BYTES: size of the device's memory in bytes. Default: 8 GiB. */

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <pthread.h>
#include "driver_types.h"
#define OK return cudaSuccess

static size_t total_bytes(void) {
  const char *s = getenv("DEVICELESS_BYTES");
  return s ? strtoull(s, 0, 10) : 8ull << 30;
}

/* -- memory: as with NVIDIA's driver, a forked child has none of the device's -- */

enum { MOST_REGIONS = 65536 };
static struct { char *start; size_t bytes; } regions[MOST_REGIONS];
static int region_count;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int last_error;
static __thread int device;

static int fail(int error) { last_error = error; return error; }

static int region_of(const void *p) {
  for (int i = 0; i < region_count; i++)
    if ((const char *)p >= regions[i].start && (const char *)p < regions[i].start + regions[i].bytes) return i;
  return -1;
}

int cudaMalloc(void **p, size_t n) {
  pthread_mutex_lock(&lock);
  void *start = MAP_FAILED;
  if (used + n <= total_bytes() && region_count < MOST_REGIONS)
    start = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start != MAP_FAILED) {
    madvise(start, n, MADV_DONTFORK);
    used += n;
    regions[region_count].start = start;
    regions[region_count++].bytes = n;
    *p = start;
  }
  pthread_mutex_unlock(&lock);
  return start == MAP_FAILED ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
int cudaFree(void *p) {
  pthread_mutex_lock(&lock);
  int i = region_of(p);
  if (i >= 0) {
    munmap(p, regions[i].bytes);
    used -= regions[i].bytes;
    regions[i] = regions[--region_count];
  }
  pthread_mutex_unlock(&lock);
  OK;
}
int cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  pthread_mutex_lock(&lock);
  if (region_of(p) >= 0) { a->type = cudaMemoryTypeDevice; a->devicePointer = (void *)p; }
  pthread_mutex_unlock(&lock);
  OK;
}
int cudaMallocAsync(void **p, size_t n, void *s) { return cudaMalloc(p, n); }
int cudaFreeAsync(void *p, void *s) { return cudaFree(p); }
int cudaMemGetInfo(size_t *f, size_t *t) { *t = total_bytes(); *f = *t - used; OK; }
int cudaHostAlloc(void **p, size_t n, unsigned f) {
  *p = aligned_alloc(4096, (n + 4095) & ~4095ull);
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
int cudaFreeHost(void *p) { free(p); OK; }
int cudaHostRegister(void *p, size_t n, unsigned f) { OK; }
int cudaHostUnregister(void *p) { OK; }
int cudaHostGetDevicePointer(void **d, void *h, unsigned f) { *d = h; OK; }

/* -- copies -- */

int cudaMemcpy(void *d, const void *s, size_t n, int k) { memcpy(d, s, n); OK; }
int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *st) { memmove(d, s, n); OK; }
int cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, void *st) { memmove(d, s, n); OK; }
int cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int k, void *st) {
  for (size_t i = 0; i < h; i++) memmove((char *)d + i * dp, (char *)s + i * sp, w);
  OK;
}
int cudaMemset(void *d, int v, size_t n) { memset(d, v, n); OK; }
int cudaMemsetAsync(void *d, int v, size_t n, void *st) { memset(d, v, n); OK; }

/* -- the device -- */

int cudaGetDeviceCount(int *n) { *n = 1; OK; }
int cudaGetDevice(int *d) { *d = device; OK; }
int cudaSetDevice(int d) { device = d; OK; }
int cudaDeviceSynchronize(void) { OK; }
int cudaDriverGetVersion(int *v) { *v = 12060; OK; }
int cudaRuntimeGetVersion(int *v) { *v = 12060; OK; }
int cudaGetLastError(void) { int e = last_error; last_error = 0; return e; }
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(int e) { return e == 2 ? "out of memory" : "an error"; }
const char *cudaGetErrorName(int e) { return e == 2 ? "cudaErrorMemoryAllocation" : "cudaError"; }
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "deviceless");
  p->totalGlobalMem = total_bytes();
  p->major = 8; p->minor = 0; p->multiProcessorCount = 108; p->warpSize = 32;
  p->maxThreadsPerBlock = 1024; p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerBlock = 49152; p->sharedMemPerMultiprocessor = 167936; p->sharedMemPerBlockOptin = 166912;
  p->regsPerBlock = 65536; p->regsPerMultiprocessor = 65536; p->l2CacheSize = 41943040;
  p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64;
  p->memoryBusWidth = 5120; p->textureAlignment = 512;
  OK;
}
int cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int d) { return cudaGetDeviceProperties(p, d); }
int cudaDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 8 : 0; OK; }
int cudaDeviceCanAccessPeer(int *v, int a, int b) { *v = 0; OK; }
int cudaDeviceEnablePeerAccess(int p, unsigned f) { OK; }
int cudaDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:00:00.0"); OK; }
int cudaDeviceGetStreamPriorityRange(int *l, int *g) { *l = 0; *g = -5; OK; }

/* -- events and streams: everything completes at once -- */

int cudaEventCreate(void **e) { *e = malloc(8); OK; }
int cudaEventCreateWithFlags(void **e, unsigned f) { *e = malloc(8); OK; }
int cudaEventDestroy(void *e) { free(e); OK; }
int cudaEventElapsedTime(float *ms, void *a, void *b) { *ms = 0.01f; OK; }
int cudaEventQuery(void *e) { OK; }
int cudaEventRecord(void *e, void *s) { OK; }
int cudaEventRecordWithFlags(void *e, void *s, unsigned f) { OK; }
int cudaEventSynchronize(void *e) { OK; }
int cudaStreamCreate(void **s) { *s = malloc(8); OK; }
int cudaStreamCreateWithPriority(void **s, unsigned f, int p) { *s = malloc(8); OK; }
int cudaStreamDestroy(void *s) { free(s); OK; }
int cudaStreamGetPriority(void *s, int *p) { *p = 0; OK; }
int cudaStreamQuery(void *s) { OK; }
int cudaStreamSynchronize(void *s) { OK; }
int cudaStreamWaitEvent(void *s, void *e, unsigned f) { OK; }
int cudaStreamIsCapturing(void *s, int *st) { *st = 0; OK; }
int cudaStreamGetCaptureInfo(void *s, int *st, unsigned long long *id) { *st = 0; if (id) *id = 0; OK; }
int cudaStreamGetCaptureInfo_v2(void *s, int *st, unsigned long long *id) {
  return cudaStreamGetCaptureInfo(s, st, id);
}
int cudaStreamAddCallback(void *s, void (*f)(void *, int, void *), void *u, unsigned g) { f(s, 0, u); OK; }
int cudaLaunchHostFunc(void *s, void (*f)(void *), void *u) { f(u); OK; }
int cudaThreadExchangeStreamCaptureMode(int *m) { OK; }
int cudaProfilerStart(void) { OK; }
int cudaProfilerStop(void) { OK; }

/* -- kernels: launched, but not run -- */

struct d3 { unsigned x, y, z; };
static __thread struct { struct d3 grid, block; size_t shared; void *stream; } call;
unsigned __cudaPushCallConfiguration(struct d3 grid, struct d3 block, size_t shared, void *stream) {
  call.grid = grid; call.block = block; call.shared = shared; call.stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(struct d3 *grid, struct d3 *block, size_t *shared, void **stream) {
  *grid = call.grid; *block = call.block; *shared = call.shared; *stream = call.stream;
  OK;
}
int __cudaGetKernel(void **kernel, const void *f) { *kernel = (void *)f; OK; }
int __cudaLaunchKernel(void *k, struct d3 g, struct d3 b, void **a, size_t sh, void *st) { OK; }
int cudaLaunchKernel(const void *f, struct d3 g, struct d3 b, void **a, size_t sh, void *st) { OK; }
int cudaLaunchKernelExC(const void *c, const void *f, void **a) { OK; }
void **__cudaRegisterFatBinary(void *f) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **h) {}
void __cudaUnregisterFatBinary(void **h) {}
void __cudaRegisterFunction() {}
void __cudaRegisterVar() {}
char __cudaInitModule(void **h) { return 1; }
int cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a); a->binaryVersion = a->ptxVersion = 80; a->maxThreadsPerBlock = 1024; a->numRegs = 32; OK;
}
int cudaFuncSetAttribute(const void *f, int a, int v) { OK; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n) { *n = 2; OK; }

/* -- cuBLAS -- */

int cublasCreate_v2(void **h) { *h = malloc(8); return 0; }
int cublasDestroy_v2(void *h) { free(h); return 0; }
int cublasGetMathMode(void *h, int *m) { *m = 0; return 0; }
int cublasGetPointerMode_v2(void *h, int *m) { *m = 0; return 0; }
#define NOTHING(name) int name() { return 0; }
NOTHING(cublasSetMathMode) NOTHING(cublasSetPointerMode_v2) NOTHING(cublasSetStream_v2) NOTHING(cublasSetWorkspace_v2)
NOTHING(cublasSgemm_v2) NOTHING(cublasDgemm_v2) NOTHING(cublasGemmEx) NOTHING(cublasSgemmEx) NOTHING(cublasSgemv_v2)
NOTHING(cublasDgemv_v2) NOTHING(cublasSgemmStridedBatched) NOTHING(cublasDgemmStridedBatched)
NOTHING(cublasGemmStridedBatchedEx) NOTHING(cublasSdot_v2) NOTHING(cublasDdot_v2) NOTHING(cublasDotEx)
int cublasLtMatmulDescCreate(void **d) { *d = malloc(8); return 0; }
int cublasLtMatmulPreferenceCreate(void **d) { *d = malloc(8); return 0; }
int cublasLtMatrixLayoutCreate(void **d) { *d = malloc(8); return 0; }
int cublasLtCreate(void **h) { *h = malloc(8); return 0; }
NOTHING(cublasLtMatmulDescDestroy) NOTHING(cublasLtMatmulPreferenceDestroy) NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatmulDescSetAttribute) NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatmul)
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int n, void *r,
                                   int *found) {
  *found = 1;
  return 0;
}

/* -- the driver: torch looks these functions up -- */

static int nothing() { return 0; }
int cudaGetDriverEntryPoint(const char *s, void **f, unsigned long long g, int *r) {
  *f = nothing;
  if (r) *r = 0;
  OK;
}
int cudaGetDriverEntryPointByVersion(const char *s, void **f, unsigned v, unsigned long long g, int *r) {
  return cudaGetDriverEntryPoint(s, f, g, r);
}

NOTHING(cuCtxGetCurrent) NOTHING(cuCtxSetCurrent) NOTHING(cuDeviceGetAttribute) NOTHING(cuDevicePrimaryCtxGetState)
NOTHING(cuDevicePrimaryCtxRetain) NOTHING(cuFuncGetAttribute) NOTHING(cuFuncSetAttribute) NOTHING(cuGetErrorString)
NOTHING(cuLaunchCooperativeKernel) NOTHING(cuLaunchKernel) NOTHING(cuLinkAddData_v2) NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate_v2) NOTHING(cuMemAddressFree) NOTHING(cuMemAddressReserve) NOTHING(cuMemCreate)
NOTHING(cuMemExportToShareableHandle) NOTHING(cuMemGetAllocationGranularity) NOTHING(cuMemImportFromShareableHandle)
NOTHING(cuMemMap) NOTHING(cuMemRelease) NOTHING(cuMemSetAccess) NOTHING(cuMemUnmap) NOTHING(cuModuleGetFunction)
NOTHING(cuModuleLoadData) NOTHING(cuModuleLoadDataEx) NOTHING(cuModuleUnload) NOTHING(cuMulticastAddDevice)
NOTHING(cuMulticastBindMem) NOTHING(cuMulticastCreate) NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOTHING(cuTensorMapEncodeTiled)
