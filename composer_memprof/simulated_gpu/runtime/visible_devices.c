/* Which of the machine's devices the process sees: CUDA_VISIBLE_DEVICES, which CUDA reads once, when it is first asked
   for devices. As in CUDA, the list ends at the first entry that is no device of the machine. */

#include "simulated_gpu.h"

static int numbers[MOST_DEVICES]; /* the machine's number of each device that is seen */
static int count;
static int is_read;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
  is_read = 0;
  pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

static void read_list(const char *list, long devices) {
  int is_double = 0; /* a device is named twice: CUDA then shows none */
  for (const char *at = list; *at && count < MOST_DEVICES;) {
    char *end;
    long number = strtol(at, &end, 10);
    if (end != at && number < 0) break;
    if (end == at || (*end && *end != ',') || number >= devices) {
      fprintf(stderr,
              "simulated GPU: CUDA_VISIBLE_DEVICES='%s' asks for GPU '%.*s', and the simulated machine has %ld GPU%s "
              "(--devices); it is hidden with all that follow, as on a real machine\n",
              list, (int)strcspn(at, ","), at, devices, devices == 1 ? "" : "s");
      return;
    }
    for (int i = 0; i < count; i++) is_double |= numbers[i] == number;
    numbers[count++] = number;
    at = *end ? end + 1 : end;
  }
  if (is_double) count = 0;
  if (!count) fprintf(stderr, "simulated GPU: CUDA_VISIBLE_DEVICES='%s' hides all GPUs\n", list);
}

static void read_once(void) {
  long devices = figure("devices");
  if (devices > MOST_DEVICES) devices = MOST_DEVICES;
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  pthread_mutex_lock(&lock);
  if (!is_read) {
    count = 0;
    if (list) read_list(list, devices);
    else for (; count < devices; count++) numbers[count] = count;
    is_read = 1;
  }
  pthread_mutex_unlock(&lock);
}

int devices_seen(void) {
  read_once();
  return count;
}

int number_on_machine(int device) {
  read_once();
  return device >= 0 && device < count ? numbers[device] : -1;
}

int device_with_number(int number) {
  read_once();
  for (int device = 0; device < count; device++)
    if (numbers[device] == number) return device;
  return -1;
}
