/* The figures of the simulated device, from the environment variable SIMULATED_GPU ("name=value;..."). */

#include "simulated_gpu.h"

static const char *figures; /* a copy of the variable: a script may clear its environment */
static int is_read;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
/* A forked process that has not used the device may simulate another one. */
static void in_child(void) {
  is_read = 0;
  pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

static const char *all_figures(void) {
  pthread_mutex_lock(&lock);
  const char *now = is_read ? 0 : getenv("SIMULATED_GPU");
  if (now) figures = strdup(now);
  is_read = 1;
  pthread_mutex_unlock(&lock);
  return figures;
}

static const char *find_figure(const char *name) {
  size_t length = strlen(name);
  for (const char *at = all_figures(); at && *at; at++) {
    if (!strncmp(at, name, length) && at[length] == '=') return at + length + 1;
    at = strchr(at, ';');
    if (!at) break;
  }
  return ""; /* 0: a device without memory */
}

long long figure(const char *name) { return strtoll(find_figure(name), 0, 10); }

void text_figure(const char *name, char *value, size_t size) {
  const char *found = find_figure(name);
  size_t length = strcspn(found, ";");
  if (length >= size) length = size - 1;
  memcpy(value, found, length);
  value[length] = 0;
}
