/* Clocks: what a device's time would be. Each stream has one, and the host has one.

   They run while Python asks for time (`simulated_gpu_time`), and cost nothing otherwise. A launch begins when the host
   and what came before it on its stream are done. How long its kernel takes is not known here: Python says after each
   operator how long all that the operator launched takes (`simulated_gpu_took`). */

#include "simulated_gpu.h"

enum { MOST_GROUPS = 256 };

static int runs, period;
static double host, latest, beginning; /* in seconds */
static double launch_cost, shortest_kernel, bytes_per_second_of_bus, bytes_per_second; /* of the device */
static Clock of_default_streams[MOST_DEVICES], of_groups[MOST_GROUPS];
static long counts[2]; /* launches, and those of them whose operator is not known */
static __thread void *stream_of_libraries;
static __thread Clock *launched_on;
static __thread int launches; /* since the last operator's end */

static Clock *started(Clock *clock) {
  if (clock->period != period) *clock = (Clock){.now = beginning, .period = period};
  return clock;
}
/* A stream begins with its clock; the default streams are null, 1 and 2. */
static Clock *clock_of(void *stream) {
  return started((uintptr_t)stream > 2 ? (Clock *)stream : &of_default_streams[current_device()]);
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

static Clock *launched(void *stream, double seconds, int kind) {
  Clock *clock = clock_of(stream);
  host += launch_cost;
  wait_until(clock, host, WAITING_FOR_HOST);
  spend(clock, shortest_kernel + seconds, kind);
  counts[0]++;
  return clock;
}
void kernel_launched(void *stream) {
  if (!runs) return;
  Clock *clock = launched(stream, 0, OTHER_KERNELS);
  if (launches && clock != launched_on) forget_the_last_operator();
  launched_on = clock;
  launches++;
}
void unknown_kernel_launched(void *stream) {
  if (!runs) return;
  launched(stream, 0, OTHER_KERNELS);
  counts[1]++;
}
void library_uses(void *stream) { stream_of_libraries = stream; }
void library_launched(void) { kernel_launched(stream_of_libraries); }
void copy_launched(void *stream, size_t bytes, int within_device) {
  if (runs) launched(stream, within_device ? 2 * bytes / bytes_per_second : bytes / bytes_per_second_of_bus, COPIES);
}
void memory_set(void *stream, size_t bytes) {
  if (runs) launched(stream, bytes / bytes_per_second, OTHER_KERNELS);
}

void record_time(double *time, void *stream) {
  if (!runs) return;
  Clock *clock = clock_of(stream);
  *time = clock->now > host ? clock->now : host;
}
void stream_waits(void *stream, double time) { if (runs) wait_until(clock_of(stream), time, WAITING_FOR_STREAMS); }
void host_waits(double time) { if (runs && time > host) host = time; }
void host_waits_for_stream(void *stream) { if (runs) host_waits(clock_of(stream)->now); }
void host_waits_for_all(void) { host_waits(latest); }
int time_is_known(void) { return runs; }

/* -- for Python -- */

/* Starts the clocks at the latest time that one of them showed, or stops them. */
void simulated_gpu_time(int run, double launch, double kernel, double bus, double memory) {
  launch_cost = launch;
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
/* The operator that has ended launched kernels that take so many seconds together. */
void simulated_gpu_took(double seconds, int kind) {
  if (!launches) return;
  double least = launches * shortest_kernel;
  launched_on->spent[OTHER_KERNELS] -= least;
  launched_on->now -= least;
  launches = 0;
  spend(launched_on, seconds > least ? seconds : least, kind);
}
/* A collective on the stream of its group, after what the caller's stream has to do. Returns its end. */
double simulated_gpu_collective(int group, void *stream, double seconds) {
  Clock *own = started(&of_groups[group % MOST_GROUPS]);
  double begin;
  host += launch_cost;
  record_time(&begin, stream);
  wait_until(own, begin, WAITING_FOR_STREAMS);
  spend(own, seconds, COLLECTIVES);
  return own->now;
}
void simulated_gpu_wait(void *stream, double end) { stream_waits(stream, end); }
/* Seconds since the clocks were started, after all that was launched. */
double simulated_gpu_elapsed(void) { return (latest > host ? latest : host) - beginning; }
double simulated_gpu_spent(void *stream, int kind) { return clock_of(stream)->spent[kind]; }
long simulated_gpu_count(int unknown) {
  forget_the_last_operator();
  return counts[unknown];
}
