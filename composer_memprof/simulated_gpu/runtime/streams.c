/* Streams, events and graphs: everything completes at once, though clocks may say when a device would have done it;
   which streams a capture has is kept, what they do is not. */

#include "simulated_gpu.h"

enum { MOST_CAPTURES = 64 };

/* `capture` is the id of the capture that the work belongs to, also after that has ended. */
typedef struct { Clock clock; int priority; unsigned long long capture; } Stream;
typedef struct { double time; unsigned long long capture; } Event;

/* Captures that have begun and not ended; `id` is 0 where there is none. */
static struct { unsigned long long id; int invalid, mode; pthread_t thread; } captures[MOST_CAPTURES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int place_of(unsigned long long capture) {
  for (int i = 0; i < MOST_CAPTURES; i++)
    if (captures[i].id == capture) return i;
  return -1;
}

static unsigned long long still_active(unsigned long long capture) {
  return capture && place_of(capture) >= 0 ? capture : 0;
}

/* The default streams (null, 1 and 2) can't be captured. */
static Stream *stream_at(void *stream) { return (uintptr_t)stream > 2 ? stream : 0; }

unsigned long long capture_on(void *stream) {
  return stream_at(stream) ? still_active(stream_at(stream)->capture) : 0;
}

/* Nothing can be waited for while it is captured; whoever tries ends the capture. */
static int wait_for(unsigned long long capture, int error) {
  if (!capture) OK;
  int place = place_of(capture);
  if (place >= 0) captures[place].invalid = 1;
  return fail(error);
}

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
int cudaStreamQuery(void *stream) { return wait_for(capture_on(stream), cudaErrorStreamCaptureUnsupported); }
int cudaStreamSynchronize(void *stream) {
  host_waits_for_stream(stream);
  return cudaStreamQuery(stream);
}
/* A stream that waits for a captured one joins the capture. */
int cudaStreamWaitEvent(void *stream, Event *event, unsigned flags) {
  stream_waits(stream, event->time);
  if (stream_at(stream) && still_active(event->capture)) stream_at(stream)->capture = event->capture;
  OK;
}

int cudaEventCreateWithFlags(Event **event, unsigned flags) { *event = calloc(1, sizeof **event); OK; }
int cudaEventCreate(Event **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventRecord(Event *event, void *stream) {
  event->capture = capture_on(stream);
  record_time(&event->time, stream);
  OK;
}
int cudaEventRecordWithFlags(Event *event, void *stream, unsigned flags) { return cudaEventRecord(event, stream); }
int cudaEventQuery(Event *event) { return wait_for(still_active(event->capture), cudaErrorCapturedEvent); }
int cudaEventSynchronize(Event *event) {
  host_waits(event->time);
  return cudaEventQuery(event);
}
int cudaEventDestroy(void *event) { free(event); OK; }
int cudaEventElapsedTime(float *milliseconds, Event *start, Event *end) {
  if (time_is_known()) {
    *milliseconds = 1000 * (end->time - start->time);
    OK;
  }
  assumed("the time between any two events is 0.01 ms; what is tuned by time takes the first choice, for products cuBLAS");
  *milliseconds = 0.01f;
  OK;
}

/* -- graphs -- */

int cudaStreamBeginCapture(void *stream, int mode) {
  static unsigned long long begun;
  if (!stream_at(stream) || capture_on(stream)) return fail(cudaErrorInvalidValue);
  pthread_mutex_lock(&lock);
  int place = place_of(0);
  if (place >= 0) {
    captures[place].invalid = 0;
    captures[place].mode = mode;
    captures[place].thread = pthread_self();
    captures[place].id = stream_at(stream)->capture = ++begun;
  }
  pthread_mutex_unlock(&lock);
  return place >= 0 ? 0 : fail(cudaErrorNotSupported);
}
int cudaStreamEndCapture(void *stream, void **graph) {
  unsigned long long capture = capture_on(stream);
  if (!capture) return fail(cudaErrorInvalidValue);
  int place = place_of(capture);
  captures[place].id = 0;
  *graph = captures[place].invalid ? 0 : malloc(8);
  return *graph ? 0 : fail(cudaErrorStreamCaptureInvalidated);
}
int cudaStreamIsCapturing(void *stream, int *status) {
  int place = capture_on(stream) ? place_of(capture_on(stream)) : -1;
  *status = place < 0 ? cudaStreamCaptureStatusNone
          : captures[place].invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
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
int cudaGraphLaunch(void *executable, void *stream) { kernel_launched(stream); forget_what_was_written(); OK; }

/* Whatever waits for a device is forbidden while a stream is captured: by anybody, by the thread that captures, or by
   nobody, as the mode of the capture says. */
static int forbids_waiting(int i) {
  return captures[i].mode == cudaStreamCaptureModeGlobal
      || (captures[i].mode == cudaStreamCaptureModeThreadLocal && pthread_equal(captures[i].thread, pthread_self()));
}
int cudaDeviceSynchronize(void) {
  host_waits_for_all();
  for (int i = 0; i < MOST_CAPTURES; i++)
    if (captures[i].id && forbids_waiting(i)) return wait_for(captures[i].id, cudaErrorStreamCaptureUnsupported);
  OK;
}
NOTHING(cudaGraphDebugDotPrint) NOTHING(cudaThreadExchangeStreamCaptureMode)
