/* What each stream did, and when: kept while Python asks for it, for a trace. */

#include "simulated_gpu.h"

enum { MOST_EVENTS = 4 << 20 };

typedef struct {
  long long stream; /* of its clock */
  double start, seconds, host_start, host_seconds;
  int kind, name, launches; /* no launches: the host waits */
  int waits_for_its_operator;
} TraceEvent;

static TraceEvent *events;
static int event_count, room, keeps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static TraceEvent *add(TraceEvent event) {
  if (event_count == room) {
    int more = room ? 2 * room : 1 << 12;
    TraceEvent *larger = more > MOST_EVENTS ? 0 : realloc(events, more * sizeof *events);
    if (!larger) return 0;
    events = larger;
    room = more;
  }
  events[event_count] = event;
  return &events[event_count++];
}

void trace_event(const Clock *clock, double seconds, int kind, int name, double host_end, double host_seconds,
                 int of_operator) {
  if (!keeps) return;
  pthread_mutex_lock(&lock);
  add((TraceEvent){clock->id, clock->now - seconds, seconds, host_end - host_seconds, host_seconds, kind, name, 1,
                   of_operator});
  pthread_mutex_unlock(&lock);
}

void trace_host_waits(double start, double seconds) {
  if (!keeps) return;
  pthread_mutex_lock(&lock);
  add((TraceEvent){0, start, seconds, start, seconds, WAITING_FOR_HOST, TRACE_HOST_WAITS, 0, 0});
  pthread_mutex_unlock(&lock);
}

/* What an operator launched is one event, which begins after what it copied in between. */
void trace_operator(const Clock *clock, int launches, double seconds, int kind, int name) {
  if (!keeps) return;
  pthread_mutex_lock(&lock);
  int first = event_count;
  for (int left = launches; left && first; ) left -= events[--first].waits_for_its_operator;
  TraceEvent whole = {clock->id, clock->now - seconds, seconds, 0, 0, kind, name, launches, 0};
  double removed = 0;
  int kept = first;
  for (int i = first; i < event_count; i++) {
    TraceEvent event = events[i];
    if (event.waits_for_its_operator) {
      if (!removed) whole.host_start = event.host_start;
      whole.host_seconds = event.host_start + event.host_seconds - whole.host_start;
      removed += event.seconds;
    } else {
      if (event.stream == clock->id && event.launches) event.start -= removed;
      events[kept++] = event;
    }
  }
  event_count = kept;
  add(whole);
  pthread_mutex_unlock(&lock);
}

/* -- for Python -- */

/* Keeps events from now on, or forgets them. */
void simulated_gpu_keep_trace(int keep) {
  pthread_mutex_lock(&lock);
  keeps = keep;
  event_count = 0;
  pthread_mutex_unlock(&lock);
}
int simulated_gpu_trace_count(void) { return event_count; }
const void *simulated_gpu_trace_events(void) { return events; }
