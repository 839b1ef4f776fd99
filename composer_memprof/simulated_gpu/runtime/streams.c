/* Streams, events and graphs: everything completes at once; what is captured is not kept. */

#include "simulated_gpu.h"

typedef struct { int priority; unsigned long long capture; int capture_mode; } Stream;

static unsigned long long captures;

/* The default streams (null, 1 and 2) can't be captured. */
static Stream *stream_at(void *stream) { return (uintptr_t)stream > 2 ? stream : 0; }

unsigned long long capture_on(void *stream) { return stream_at(stream) ? stream_at(stream)->capture : 0; }

int cudaStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
  *stream = calloc(1, sizeof **stream);
  (*stream)->priority = priority;
  OK;
}
int cudaStreamCreate(Stream **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
int cudaStreamCreateWithFlags(Stream **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaStreamDestroy(void *stream) { free(stream_at(stream)); OK; }
int cudaStreamGetPriority(void *stream, int *priority) {
  *priority = stream_at(stream) ? stream_at(stream)->priority : 0;
  OK;
}
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; OK; }
int cudaStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
  call(stream, 0, data);
  OK;
}
int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) { call(data); OK; }
NOTHING(cudaStreamQuery) NOTHING(cudaStreamSynchronize) NOTHING(cudaStreamWaitEvent)

int cudaEventCreateWithFlags(void **event, unsigned flags) { *event = malloc(8); OK; }
int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void *event) { free(event); OK; }
int cudaEventElapsedTime(float *milliseconds, void *start, void *end) { *milliseconds = 0.01f; OK; }
NOTHING(cudaEventQuery) NOTHING(cudaEventRecord) NOTHING(cudaEventRecordWithFlags) NOTHING(cudaEventSynchronize)

/* -- graphs -- */

int cudaStreamBeginCapture(void *stream, int mode) {
  Stream *captured = stream_at(stream);
  if (!captured || captured->capture) return fail(cudaErrorInvalidValue);
  captured->capture = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
  OK;
}
int cudaStreamEndCapture(void *stream, void **graph) {
  Stream *captured = stream_at(stream);
  if (!captured || !captured->capture) return fail(cudaErrorInvalidValue);
  captured->capture = 0;
  *graph = malloc(8);
  OK;
}
int cudaStreamIsCapturing(void *stream, int *status) {
  *status = capture_on(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  OK;
}
/* The later parameters, which differ between CUDA 12 and 13, are for those who add to a graph by hand. */
int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id) {
  if (id) *id = capture_on(stream);
  return cudaStreamIsCapturing(stream, status);
}
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id) {
  return cudaStreamGetCaptureInfo_v2(stream, status, id);
}
int cudaGraphInstantiate(void **executable) { *executable = malloc(8); OK; }
int cudaGraphInstantiateWithFlags(void **executable) { *executable = malloc(8); OK; }
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) { *count = 1; OK; } /* torch warns about none */
int cudaGraphDestroy(void *graph) { free(graph); OK; }
int cudaGraphExecDestroy(void *executable) { free(executable); OK; }
int cudaGraphLaunch(void *executable, void *stream) { forget_what_was_written(); OK; }
NOTHING(cudaGraphDebugDotPrint) NOTHING(cudaThreadExchangeStreamCaptureMode)
