/* Memory: address space without pages, counted for each device. */

#include "simulated_gpu.h"
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_REGIONS = 1 << 18, MOST_PINNED = 1 << 16 };
/* The driver's pages. */
enum { GRANULARITY = 2 << 20 };

/* Bytes of a device that the driver created and that may be mapped at an address. */
typedef struct { size_t bytes; int device, mappings, released; } Handle;

/* A device's memory at an address; the highest first, since the system gives lower and lower ones. `handle` is null where cudaMalloc made it. A pooled region's bytes
   are taken by its pool. */
typedef struct { char *start; size_t bytes; int device; Handle *handle; int pooled; } Region;
static Region regions[MOST_REGIONS];
static int region_count;
static size_t in_use[MOST_DEVICES];
typedef struct { size_t used, most_used, reserved, most_reserved; } Pool;
static Pool pools[MOST_DEVICES]; /* of each device, for cudaMallocAsync */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int lost;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
  lost |= region_count > 0;
  pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

int is_lost(void) { return lost; }

/* The index of the highest region that starts at or before the address; `region_count` without one. */
static int region_before(const void *address) {
  int low = 0, high = region_count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (regions[middle].start > (const char *)address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static int region_of(const void *address) {
  int i = region_before(address);
  return i < region_count && (const char *)address < regions[i].start + regions[i].bytes ? i : -1;
}

static void add_region(char *start, size_t bytes, int device, Handle *handle) {
  int i = region_before(start);
  memmove(regions + i + 1, regions + i, (region_count++ - i) * sizeof *regions);
  regions[i] = (Region){start, bytes, device, handle, 0};
}

static void remove_region(int i) { memmove(regions + i, regions + i + 1, (--region_count - i) * sizeof *regions); }

/* As with NVIDIA's driver, a forked child has none of the device's memory. */
static char *address_space(size_t bytes) {
  char *start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return 0;
  madvise(start, bytes, MADV_DONTFORK);
  madvise(start, bytes, MADV_NOHUGEPAGE);
  return start;
}

/* For Python: from now on the device's memory does not end. */
static int is_endless;
void simulated_gpu_lift_limit(void) { is_endless = 1; }

/* Takes bytes of the device's memory; returns whether there were enough. */
static int take(size_t bytes, int device) {
  size_t most = is_endless ? SIZE_MAX : bytes_for_use();
  if (in_use[device] > most || bytes > most - in_use[device]) return 0;
  in_use[device] += bytes;
  return 1;
}

size_t bytes_in_use(int device) { return in_use[device]; }

size_t bytes_for_use(void) {
  long long bytes = figure("total_memory") - figure("outside");
  return bytes > 0 ? bytes : 0;
}

int is_on_device(const void *address) {
  pthread_mutex_lock(&lock);
  int found = region_of(address) >= 0;
  pthread_mutex_unlock(&lock);
  return found;
}

int address_range(void **start, size_t *bytes, void *address) {
  pthread_mutex_lock(&lock);
  int i = region_of(address);
  if (i >= 0 && start) *start = regions[i].start;
  if (i >= 0 && bytes) *bytes = regions[i].bytes;
  pthread_mutex_unlock(&lock);
  return i >= 0 ? 0 : cudaErrorInvalidValue;
}

int cudaMalloc(void **address, size_t bytes) {
  *address = 0;
  if (lost) return fail(cudaErrorInitializationError);
  if (!bytes) OK;
  pthread_mutex_lock(&lock);
  int device = current_device();
  char *start = 0;
  if (region_count < MOST_REGIONS && take(bytes, device)) {
    start = address_space(bytes);
    if (start) add_region(start, bytes, device, 0);
    else in_use[device] -= bytes;
  }
  pthread_mutex_unlock(&lock);
  *address = start;
  return start ? 0 : fail(cudaErrorMemoryAllocation);
}

int cudaFree(void *address) {
  pthread_mutex_lock(&lock);
  int i = region_of(address);
  if (i >= 0) {
    munmap(regions[i].start, regions[i].bytes);
    if (regions[i].pooled) pools[regions[i].device].used -= regions[i].bytes;
    else in_use[regions[i].device] -= regions[i].bytes;
    remove_region(i);
  }
  pthread_mutex_unlock(&lock);
  OK;
}

int cudaMallocManaged(void **address, size_t bytes, unsigned flags) { return cudaMalloc(address, bytes); }

int cudaMemGetInfo(size_t *available, size_t *total) {
  *total = figure("total_memory");
  *available = bytes_for_use() - in_use[current_device()];
  OK;
}

/* The host's memory that is pinned, in no order: torch keeps few large pieces. */
static struct { const char *start; size_t bytes; int is_own; } pinned[MOST_PINNED];
static int pinned_count;

static int pinned_at(const char *address) {
  for (int i = 0; i < pinned_count; i++)
    if (address >= pinned[i].start && address < pinned[i].start + pinned[i].bytes) return i;
  return -1;
}

int is_pinned(const void *address) {
  pthread_mutex_lock(&lock);
  int found = pinned_at(address) >= 0;
  pthread_mutex_unlock(&lock);
  return found;
}

int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
  memset(attributes, 0, sizeof *attributes);
  pthread_mutex_lock(&lock);
  int i = region_of(address);
  if (i >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = regions[i].device;
    attributes->devicePointer = (void *)address;
  } else if (pinned_at(address) >= 0) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_device();
    attributes->devicePointer = attributes->hostPointer = (void *)address;
  }
  pthread_mutex_unlock(&lock);
  OK;
}

/* -- pools of cudaMallocAsync -- */

/* As torch asks of it, a pool keeps what it reserved until it is trimmed. */
enum { POOL_GROWS_BY = 32 << 20 };

static int grow(Pool *pool, int device, size_t unit) {
  size_t wanted = (pool->used + unit - 1) / unit * unit;
  if (wanted <= pool->reserved) return 1;
  if (!take(wanted - pool->reserved, device)) return 0;
  pool->reserved = wanted;
  if (pool->most_reserved < wanted) pool->most_reserved = wanted;
  return 1;
}

int cudaMallocAsync(void **address, size_t bytes, void *stream) {
  *address = 0;
  if (lost) return fail(cudaErrorInitializationError);
  if (!bytes) OK;
  assumed("cudaMallocAsync's pool grows by 32 MiB and is never fragmented");
  pthread_mutex_lock(&lock);
  int device = current_device();
  Pool *pool = pools + device;
  char *start = 0;
  pool->used += bytes;
  if (region_count < MOST_REGIONS && (grow(pool, device, POOL_GROWS_BY) || grow(pool, device, GRANULARITY)))
    start = address_space(bytes);
  if (start) {
    add_region(start, bytes, device, 0);
    regions[region_of(start)].pooled = 1;
    if (pool->most_used < pool->used) pool->most_used = pool->used;
  } else {
    pool->used -= bytes;
  }
  pthread_mutex_unlock(&lock);
  *address = start;
  return start ? 0 : fail(cudaErrorMemoryAllocation);
}
int cudaFreeAsync(void *address, void *stream) { return cudaFree(address); }

int cudaDeviceGetDefaultMemPool(Pool **pool, int device) { *pool = pools + device; OK; }

static size_t *attribute_of(Pool *pool, int attribute) {
  switch (attribute) {
    case cudaMemPoolAttrReservedMemCurrent: return &pool->reserved;
    case cudaMemPoolAttrReservedMemHigh: return &pool->most_reserved;
    case cudaMemPoolAttrUsedMemCurrent: return &pool->used;
    case cudaMemPoolAttrUsedMemHigh: return &pool->most_used;
    default: return 0;
  }
}
int cudaMemPoolGetAttribute(Pool *pool, int attribute, uint64_t *value) {
  const size_t *found = attribute_of(pool, attribute);
  *value = found ? *found : 0;
  OK;
}
/* The peaks can be set to what there is now; nothing else that torch sets is kept. */
int cudaMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
  if (attribute == cudaMemPoolAttrReservedMemHigh) pool->most_reserved = pool->reserved;
  if (attribute == cudaMemPoolAttrUsedMemHigh) pool->most_used = pool->used;
  OK;
}
int cudaMemPoolTrimTo(Pool *pool, size_t least) {
  pthread_mutex_lock(&lock);
  size_t kept = pool->used > least ? pool->used : least;
  kept = (kept + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
  if (kept < pool->reserved) {
    in_use[pool - pools] -= pool->reserved - kept;
    pool->reserved = kept;
  }
  pthread_mutex_unlock(&lock);
  OK;
}
NOTHING(cudaMemPoolSetAccess)
/* What a captured graph allocates is the pool's too. */
int cudaDeviceGetGraphMemAttribute(int device, int attribute, uint64_t *bytes) { *bytes = 0; OK; }
NOTHING(cudaDeviceSetGraphMemAttribute) NOTHING(cudaDeviceGraphMemTrim)

/* -- the host's pinned memory -- */

int cudaHostRegister(void *address, size_t bytes, unsigned flags) {
  pthread_mutex_lock(&lock);
  int known = pinned_at(address) >= 0;
  if (!known && pinned_count < MOST_PINNED) {
    pinned[pinned_count].start = address;
    pinned[pinned_count].is_own = 0;
    pinned[pinned_count++].bytes = bytes;
  }
  pthread_mutex_unlock(&lock);
  return known ? fail(cudaErrorHostMemoryAlreadyRegistered) : 0;
}
/* The bytes that were pinned at the address; 0 if none were. */
static size_t unpin(void *address) {
  pthread_mutex_lock(&lock);
  int i = pinned_at(address);
  size_t bytes = i >= 0 ? pinned[i].bytes : 0;
  if (i >= 0) pinned[i] = pinned[--pinned_count];
  pthread_mutex_unlock(&lock);
  return bytes;
}
int cudaHostUnregister(void *address) { return unpin(address) ? 0 : fail(cudaErrorHostMemoryNotRegistered); }
int cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
  *address = 0;
  if (!bytes) OK;
  void *start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *address = start == MAP_FAILED ? 0 : start;
  if (!*address) return fail(cudaErrorMemoryAllocation);
  int status = cudaHostRegister(*address, bytes, flags);
  pthread_mutex_lock(&lock);
  int i = pinned_at(*address);
  if (i >= 0) pinned[i].is_own = 1;
  pthread_mutex_unlock(&lock);
  return status;
}
size_t give_back_pinned(char *address, size_t bytes) {
  uintptr_t page = sysconf(_SC_PAGESIZE), from = (uintptr_t)address, to = from + bytes;
  char *start = (char *)((from + page - 1) / page * page), *end = (char *)(to / page * page);
  if (start >= end) return 0;
  pthread_mutex_lock(&lock);
  int i = pinned_at(start), own = i >= 0 && pinned[i].is_own && end <= pinned[i].start + pinned[i].bytes;
  pthread_mutex_unlock(&lock);
  return own && !madvise(start, end - start, MADV_DONTNEED) ? end - start : 0;
}
int cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
int cudaFreeHost(void *address) {
  size_t bytes = address ? unpin(address) : 0;
  if (bytes) munmap(address, bytes);
  OK;
}
int cudaHostGetDevicePointer(void **on_device, void *on_host, unsigned flags) { *on_device = on_host; OK; }

/* -- the driver's virtual memory, of which torch makes expandable segments -- */

/* What the driver is told of the place of an allocation, as in cuda.h. */
typedef struct { int type, handle_types; struct { int type, id; } location; } Place;

int cuMemGetAllocationGranularity(size_t *bytes, const Place *place, int flags) { *bytes = GRANULARITY; OK; }

int cuMemAddressReserve(void **address, size_t bytes, size_t alignment, void *wanted, unsigned long long flags) {
  *address = address_space(bytes);
  return *address ? 0 : 2;
}
int cuMemAddressFree(void *address, size_t bytes) { munmap(address, bytes); OK; }

int cuMemCreate(Handle **handle, size_t bytes, const Place *place, unsigned long long flags) {
  if (lost) return cudaErrorInitializationError; /* the driver's number is the same */
  pthread_mutex_lock(&lock);
  int enough = take(bytes, place->location.id);
  pthread_mutex_unlock(&lock);
  if (!enough) return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
  *handle = malloc(sizeof **handle);
  **handle = (Handle){bytes, place->location.id, 0, 0};
  OK;
}

static void free_if_unused(Handle *handle) {
  if (!handle->released || handle->mappings) return;
  in_use[handle->device] -= handle->bytes;
  free(handle);
}

int cuMemMap(char *address, size_t bytes, size_t offset, Handle *handle, unsigned long long flags) {
  pthread_mutex_lock(&lock);
  int enough = region_count < MOST_REGIONS;
  if (enough) {
    add_region(address, bytes, handle->device, handle);
    handle->mappings++;
  }
  pthread_mutex_unlock(&lock);
  return enough ? 0 : 2;
}

int cuMemUnmap(char *address, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (char *end = address + bytes; address < end; ) {
    int i = region_of(address);
    if (i < 0) break;
    Region region = regions[i];
    madvise(region.start, region.bytes, MADV_DONTNEED);
    remove_region(i);
    region.handle->mappings--;
    free_if_unused(region.handle);
    address = region.start + region.bytes;
  }
  pthread_mutex_unlock(&lock);
  OK;
}

int cuMemRelease(Handle *handle) {
  pthread_mutex_lock(&lock);
  handle->released = 1;
  free_if_unused(handle);
  pthread_mutex_unlock(&lock);
  OK;
}
NOTHING(cuMemSetAccess)
