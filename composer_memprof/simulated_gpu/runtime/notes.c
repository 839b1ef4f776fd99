/* Notes for the user: what was assumed and what is not simulated. Each is a line of the file SIMULATED_GPU_NOTES. */

#include "simulated_gpu.h"
#include <fcntl.h>
#include <unistd.h>

enum { MOST_NOTES = 256 };

/* A note is written once in a process. `kind` is a literal; `what` may be Python's, which frees it. */
static int is_new(const char *kind, const char *what) {
  static struct { const char *kind; char *what; } known[MOST_NOTES];
  static int count;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  int new = 1;
  for (int i = 0; i < count; i++) new &= strcmp(known[i].kind, kind) || strcmp(known[i].what, what);
  char *own = new && count < MOST_NOTES ? strdup(what) : NULL;
  if (own) {
    known[count].kind = kind;
    known[count++].what = own;
  }
  pthread_mutex_unlock(&lock);
  return new;
}

static void note(const char *kind, const char *what) {
  const char *path = getenv("SIMULATED_GPU_NOTES");
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (file < 0) return;
  dprintf(file, "%s: %s\n", kind, what);
  close(file);
}

void assumed(const char *what) {
  if (is_new("assumed", what)) note("assumed", what);
}

/* For Python. */
void simulated_gpu_assumed(const char *what) { assumed(what); }

int not_simulated(const char *function, int status) {
  if (is_new("not simulated", function)) {
    note("not simulated", function);
    fprintf(stderr, "simulated GPU: %s is not simulated; what called it fails\n", function);
  }
  return status;
}
