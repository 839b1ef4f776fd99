/* Copies. What the host reads back is what was written to the device after the last kernel's launch, and otherwise
   zeros: no kernel has run, and an address that torch gave to another tensor must not show what the earlier one held.

   Only copies up to 64 KiB to the device are made at all, so that a run of 80 GB touches no memory. */

#include "simulated_gpu.h"

enum { LARGEST_COPY = 65536, MOST_WRITES = 1024, PAGE = 4096 };

static struct { const char *start; size_t bytes; } writes[MOST_WRITES];
static int write_count; /* since the last kernel; of more than MOST_WRITES, the newest are known */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

void forget_what_was_written(void) {
  if (!write_count) return; /* of most launches */
  pthread_mutex_lock(&lock);
  write_count = 0;
  pthread_mutex_unlock(&lock);
}

static int was_written(const char *address, size_t bytes) {
  for (int age = 1; age <= MOST_WRITES && age <= write_count; age++) {
    int i = (write_count - age) % MOST_WRITES;
    if (address >= writes[i].start && address + bytes <= writes[i].start + writes[i].bytes) return 1;
  }
  return 0;
}

/* For Python: whether the host would read what was written there. */
int simulated_gpu_holds(const char *address, size_t bytes) {
  pthread_mutex_lock(&lock);
  int found = was_written(address, bytes);
  pthread_mutex_unlock(&lock);
  return found;
}

static void write_to_device(char *to, const char *from, size_t bytes) {
  int last = write_count ? (write_count - 1) % MOST_WRITES : -1;
  if (bytes > LARGEST_COPY) {
    write_count = 0; /* it may have replaced what was written there */
    return;
  }
  memmove(to, from, bytes);
  if (last >= 0 && writes[last].start + writes[last].bytes == to) {
    writes[last].bytes += bytes;
    return;
  }
  int next = write_count++ % MOST_WRITES;
  writes[next].start = to;
  writes[next].bytes = bytes;
}

void write_result(char *to, const char *from, size_t bytes) {
  pthread_mutex_lock(&lock);
  write_to_device(to, from, bytes);
  pthread_mutex_unlock(&lock);
}

/* Sets the host's memory to zeros without touching pages that are zeros already: torch's new and pinned memory is address
   space only, until somebody writes to it. What was pinned is given back to the system, which has zeros for whoever reads
   it, so that offloading much costs neither time nor memory. */
static void zero_on_host(char *to, size_t bytes) {
  static const char zeros[PAGE];
  size_t whole = give_back_pinned(to, bytes);
  if (whole) {
    size_t before = (PAGE - (uintptr_t)to % PAGE) % PAGE;
    zero_on_host(to, before);
    to += before + whole;
    bytes -= before + whole;
  }
  while (bytes) {
    size_t part = PAGE - (uintptr_t)to % PAGE;
    if (part > bytes) part = bytes;
    if (memcmp(to, zeros, part)) memset(to, 0, part);
    to += part;
    bytes -= part;
  }
}

static int copy(char *to, const char *from, size_t bytes) {
  int to_device = is_on_device(to), from_device = is_on_device(from);
  if (is_lost() && (to_device || from_device)) return fail(cudaErrorInitializationError);
  pthread_mutex_lock(&lock);
  if (from_device && !was_written(from, bytes)) {
    if (to_device) write_count = 0;
    else zero_on_host(to, bytes);
  } else if (to_device) {
    write_to_device(to, from, bytes);
  } else {
    memmove(to, from, bytes);
  }
  pthread_mutex_unlock(&lock);
  OK;
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return copy(to, from, bytes); }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  copy_launched(stream, bytes, is_on_device(to), is_on_device(from));
  return copy(to, from, bytes);
}
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream) {
  return copy(to, from, bytes);
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                      int kind, void *stream) {
  for (size_t row = 0; row < height; row++)
    copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  OK;
}
/* A kernel of its own, as far as what the host reads back is concerned. */
int cudaMemset(void *to, int value, size_t bytes) {
  if (is_on_device(to)) forget_what_was_written();
  else memset(to, value, bytes);
  OK;
}
int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
  memory_set(stream, bytes);
  return cudaMemset(to, value, bytes);
}
