/* CUDA's runtime for a GPU that is not there: what its files share.

   Memory is address space that nothing touches, kernels are launched and not run, and everything completes at once.
   torch's dispatch, autograd and caching allocator run on it as on a GPU. The library is preloaded, so that its
   functions take the place of those in libcudart, libcuda, libcublas and others that torch links. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "driver_types.h"

#define OK return 0
enum { MOST_DEVICES = 64 };
/* Functions that have nothing to do. */
#define NOTHING(name) int name() { return 0; }

/* -- CUDA's functions that other files call -- */

int cudaDeviceGetAttribute(int *value, int attribute, int device);
const char *cudaGetErrorString(int error);
const char *cudaGetErrorName(int error);
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                           size_t shared, unsigned flags);
int cudaMalloc(void **address, size_t bytes);
int cudaFree(void *address);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaStreamIsCapturing(void *stream, int *status);

/* -- functions of our own: hidden, since the library's names come before those of any other library -- */

#pragma GCC visibility push(hidden)

/* figures.c: a figure of the simulated device, from the environment variable SIMULATED_GPU ("name=value;..."). */
long long figure(const char *name);
void text_figure(const char *name, char *value, size_t size);

/* device.c */
int current_device(void);

/* visible_devices.c: how many devices the process sees, the machine's number of one of them, and the one that has the
   number; -1 if there is none. */
int devices_seen(void);
int number_on_machine(int device);
int device_with_number(int number);

/* Sets the error that cudaGetLastError returns, and returns it. */
int fail(int error);

/* notes.c: tells the user what the result rests on, such as "cuDNN's workspaces are 0 B". */
void assumed(const char *what);
/* Tells the user that the function is not simulated; returns the status. */
int not_simulated(const char *function, int status);

/* memory.c */
int is_on_device(const void *address);
int is_pinned(const void *address);
/* Sets the whole pages in a range to zeros by giving them back to the system, if the runtime has made and pinned them.
   Returns how many bytes these are; 0 if they are none of its own. */
size_t give_back_pinned(char *address, size_t bytes);
/* Bytes of the device that are taken, and all that torch can have. */
size_t bytes_in_use(int device);
size_t bytes_for_use(void);
/* The range of the allocation that the address lies in; returns an error if there is none. */
int address_range(void **start, size_t *bytes, void *address);
/* Whether this process was forked from one that used the device: as with NVIDIA's driver, it can't use it. */
int is_lost(void);

/* clocks.c: the time that passes on streams, in seconds, while Python asks for it. */
enum { OTHER_KERNELS, PRODUCTS, ATTENTION, OPTIMIZER, COLLECTIVES, COPIES, WAITING_FOR_STREAMS, WAITING_FOR_HOST, KINDS };
/* `id` is that of a stream: its address, the device's number for a default stream, below 0 for a group of ranks. */
typedef struct { double now; int period; long long id; double spent[KINDS]; } Clock;
void kernel_launched(void *stream);
/* A library launches on the stream that this thread has set last, for whichever library. */
void library_uses(void *stream);
void library_launched(void);
void copy_launched(void *stream, size_t bytes, int to_device, int from_device);
void memory_set(void *stream, size_t bytes);
void record_time(double *time, void *stream);
void stream_waits(void *stream, double time);
void host_waits(double time);
void host_waits_for_stream(void *stream);
void host_waits_for_all(void);
int time_is_known(void);

/* trace.c: notes what has just passed on a clock, or for the host, if a trace is kept. Names below 0 are these; others are
   Python's. */
enum { TRACE_UNKNOWN = -1, TRACE_COPY_TO_DEVICE = -2, TRACE_COPY_TO_HOST = -3, TRACE_COPY_WITHIN = -4, TRACE_SET = -5,
       TRACE_HOST_WAITS = -6 };
void trace_event(const Clock *clock, double seconds, int kind, int name, double host_end, double host_seconds,
                 int of_operator);
void trace_host_waits(double start, double seconds);
void trace_operator(const Clock *clock, int launches, double seconds, int kind, int name);

/* copies.c: whatever the host wrote before a kernel's launch may have been replaced by it. */
void forget_what_was_written(void);
/* What a kernel would have written, for the host to read. */
void write_result(char *to, const char *from, size_t bytes);

/* counts.c: kernels that count how many elements a result has. */
void remember_if_it_counts(const void *kernel, const char *name);
/* Writes the count if the kernel is one of them; returns whether it is. Such a kernel writes nothing else that the host
   reads. */
int write_if_it_counts(const void *kernel, void **arguments);

/* streams.c: the id of the capture on a stream, 0 without one. */
unsigned long long capture_on(void *stream);

#pragma GCC visibility pop

/* The grid and the blocks of a launch. */
typedef struct { unsigned x, y, z; } Size;
