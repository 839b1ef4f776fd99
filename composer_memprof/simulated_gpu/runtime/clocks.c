/* Clocks: what a device's time would be. Each stream has one, and the host has one.

   They run while Python asks for time (`simulated_gpu_time`), and cost nothing otherwise. A launch begins when the host
   and what came before it on its stream are done. How long its kernel takes is not known here: Python says after each
   operator how long all that the operator launched takes (`simulated_gpu_took`). */

#include "simulated_gpu.h"

enum { MOST_GROUPS = 256 };

static int runs, period;
static double host, latest, beginning; /* in seconds */
static double launch_cost, operator_cost, shortest_kernel, bytes_per_second_of_bus, bytes_per_second; /* of the device */
static Clock of_default_streams[MOST_DEVICES], of_groups[MOST_GROUPS];
static long counts[2]; /* launches, and those of them whose operator is not known */
static __thread void *stream_of_libraries;
static __thread Clock *launched_on;
static __thread int launches; /* since the last operator's end */

static Clock *started(Clock *clock, long long id) {
  if (clock->period != period) *clock = (Clock){.now = beginning, .period = period, .id = id};
  return clock;
}
/* A stream begins with its clock; the default streams are null, 1 and 2. */
static Clock *clock_of(void *stream) {
  if ((uintptr_t)stream > 2) return started(stream, (intptr_t)stream);
  int device = current_device();
  return started(&of_default_streams[device], device);
}

static void wait_until(Clock *clock, double time, int kind) {
  if (time <= clock->now) return;
  clock->spent[kind] += time - clock->now;
  clock->now = time;
}
static void spend(Clock *clock, double seconds, int kind) {
  clock->spent[kind] += seconds;
  clock->now += seconds;
  if (clock->now > latest) latest = clock->now;
}

static void forget_the_last_operator(void) {
  counts[1] += launches;
  launches = 0;
}

static Clock *launched(void *stream, double seconds, int kind, int name, int of_operator) {
  Clock *clock = clock_of(stream);
  host += launch_cost;
  wait_until(clock, host, WAITING_FOR_HOST);
  spend(clock, shortest_kernel + seconds, kind);
  trace_event(clock, shortest_kernel + seconds, kind, name, host, launch_cost, of_operator);
  counts[0]++;
  return clock;
}
void kernel_launched(void *stream) {
  if (!runs) return;
  Clock *clock = launched(stream, 0, OTHER_KERNELS, TRACE_UNKNOWN, 1);
  if (launches && clock != launched_on) forget_the_last_operator();
  launched_on = clock;
  launches++;
}
void library_uses(void *stream) { stream_of_libraries = stream; }
void library_launched(void) { kernel_launched(stream_of_libraries); }
void copy_launched(void *stream, size_t bytes, int to_device, int from_device) {
  if (!runs) return;
  int within = to_device && from_device;
  double seconds = within ? 2 * bytes / bytes_per_second : bytes / bytes_per_second_of_bus;
  int name = within ? TRACE_COPY_WITHIN : to_device ? TRACE_COPY_TO_DEVICE : TRACE_COPY_TO_HOST;
  launched(stream, seconds, COPIES, name, 0);
}
void memory_set(void *stream, size_t bytes) {
  if (runs) launched(stream, bytes / bytes_per_second, OTHER_KERNELS, TRACE_SET, 0);
}

void record_time(double *time, void *stream) {
  if (!runs) return;
  Clock *clock = clock_of(stream);
  *time = clock->now > host ? clock->now : host;
}
void stream_waits(void *stream, double time) { if (runs) wait_until(clock_of(stream), time, WAITING_FOR_STREAMS); }
void host_waits(double time) {
  if (!runs || time <= host) return;
  trace_host_waits(host, time - host);
  host = time;
}
void host_waits_for_stream(void *stream) { if (runs) host_waits(clock_of(stream)->now); }
void host_waits_for_all(void) { host_waits(latest); }
int time_is_known(void) { return runs; }

/* -- for Python -- */

/* Starts the clocks at the latest time that one of them showed, or stops them. */
void simulated_gpu_time(int run, double launch, double operator, double kernel, double bus, double memory) {
  launch_cost = launch;
  operator_cost = operator;
  shortest_kernel = kernel;
  bytes_per_second_of_bus = bus;
  bytes_per_second = memory;
  runs = run;
  if (!run) return;
  host_waits_for_all();
  beginning = latest = host;
  period++;
  counts[0] = counts[1] = launches = 0;
}
/* Launches of this thread since the end of the last operator. */
int simulated_gpu_launches(void) { return launches; }
/* The operator that has ended launched kernels that take so many seconds together. `name` is for a trace. */
void simulated_gpu_took(double seconds, int kind, int name) {
  if (!launches) return;
  double least = launches * shortest_kernel;
  launched_on->spent[OTHER_KERNELS] -= least;
  launched_on->now -= least;
  if (seconds < least) seconds = least;
  spend(launched_on, seconds, kind);
  trace_operator(launched_on, launches, seconds, kind, name);
  launches = 0;
}
/* The same of an operator of torch, on which the host spends time beside its launches. */
void simulated_gpu_operated(double seconds, int kind, int name) {
  if (launches) host += operator_cost;
  simulated_gpu_took(seconds, kind, name);
}
/* A collective on the stream of its group, after what the caller's stream has to do. Returns its end. */
double simulated_gpu_collective(int group, void *stream, double seconds, int name) {
  Clock *own = started(&of_groups[group % MOST_GROUPS], -1 - group);
  double begin;
  host += launch_cost;
  record_time(&begin, stream);
  wait_until(own, begin, WAITING_FOR_STREAMS);
  spend(own, seconds, COLLECTIVES);
  trace_event(own, seconds, COLLECTIVES, name, host, launch_cost, 0);
  return own->now;
}
void simulated_gpu_wait(void *stream, double end) { stream_waits(stream, end); }
/* Seconds since the clocks were started, after all that was launched. */
double simulated_gpu_elapsed(void) { return (latest > host ? latest : host) - beginning; }
/* The host's clock, and a stream's, since the clocks were started. */
double simulated_gpu_host(void) { return host - beginning; }
double simulated_gpu_now(void *stream) { return clock_of(stream)->now - beginning; }
double simulated_gpu_beginning(void) { return beginning; }
double simulated_gpu_spent(void *stream, int kind) { return clock_of(stream)->spent[kind]; }
long simulated_gpu_count(int unknown) {
  forget_the_last_operator();
  return counts[unknown];
}
