/* NCCL: communicators of one process, and collectives, which send nothing: what would come from another rank is zeros,
   as a kernel's result. */

#include "simulated_gpu.h"

typedef struct { int ranks, rank; } Communicator;
typedef struct { char bytes[128]; } UniqueId;

enum { INVALID = 5, AFTER_LAST_OPERATION = 5 };

static Communicator *new_communicator(int ranks, int rank) {
  Communicator *made = malloc(sizeof *made);
  *made = (Communicator){ranks, rank};
  return made;
}

int ncclGetUniqueId(UniqueId *id) { memset(id, 0, sizeof *id); OK; }
/* Of all devices of one process, such as DataParallel's. */
int ncclCommInitAll(Communicator **communicators, int count, const int *devices) {
  if (count > 1) assumed("NCCL takes no memory to send between the GPUs of one process, as DataParallel does");
  for (int rank = 0; rank < count; rank++) communicators[rank] = new_communicator(count, rank);
  OK;
}
int ncclCommInitRank(Communicator **communicator, int ranks, UniqueId id, int rank) {
  if (ranks > 1) return not_simulated("NCCL between processes of the script's own (--ranks N stands for them)", INVALID);
  *communicator = new_communicator(ranks, rank);
  OK;
}
int ncclCommInitRankConfig(Communicator **communicator, int ranks, UniqueId id, int rank, void *settings) {
  return ncclCommInitRank(communicator, ranks, id, rank);
}
int ncclCommInitRankScalable(Communicator **communicator, int ranks, int rank) {
  return ncclCommInitRank(communicator, ranks, (UniqueId){0}, rank);
}
int ncclCommDestroy(Communicator *communicator) { free(communicator); OK; }
int ncclCommAbort(Communicator *communicator) { return ncclCommDestroy(communicator); }
int ncclCommCount(const Communicator *communicator, int *ranks) { *ranks = communicator->ranks; OK; }
int ncclCommUserRank(const Communicator *communicator, int *rank) { *rank = communicator->rank; OK; }
int ncclCommGetAsyncError(Communicator *communicator, int *error) { *error = 0; OK; }
const char *ncclGetLastError(Communicator *communicator) { return ""; }
NOTHING(ncclCommFinalize) NOTHING(ncclCommRegister) NOTHING(ncclCommDeregister)
NOTHING(ncclGroupStart) NOTHING(ncclGroupEnd)
int ncclRedOpCreatePreMulSum(int *operation) { *operation = AFTER_LAST_OPERATION; OK; }
NOTHING(ncclRedOpDestroy)
int ncclMemAlloc(void **address, size_t bytes) { return cudaMalloc(address, bytes); }
int ncclMemFree(void *address) { return cudaFree(address); }

/* Bytes of an element, by ncclDataType_t. */
static size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < sizeof sizes / sizeof *sizes ? sizes[type] : 0;
}

static int write_zeros(void) { forget_what_was_written(); OK; }
/* What one rank reduces or broadcasts to itself is what it had. */
static int write_own(const void *from, void *to, size_t count, int type, const Communicator *communicator) {
  if (communicator->ranks > 1) return write_zeros();
  return from == to ? 0 : cudaMemcpy(to, from, count * size_of(type), cudaMemcpyDeviceToDevice);
}

/* Every rank is taken to hold the same. */
int ncclAllGather(const char *from, char *to, size_t count, int type, Communicator *communicator, void *stream) {
  size_t bytes = count * size_of(type);
  for (int rank = 0; rank < communicator->ranks; rank++)
    if (to + rank * bytes != from) cudaMemcpy(to + rank * bytes, from, bytes, cudaMemcpyDeviceToDevice);
  OK;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, Communicator *communicator) {
  return write_own(from, to, count, type, communicator);
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, Communicator *communicator) {
  return write_own(from, to, count, type, communicator);
}
int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root,
               Communicator *communicator) {
  return write_own(from, to, count, type, communicator);
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *communicator) {
  return write_own(from, to, count, type, communicator);
}
int ncclBcast(void *values, size_t count, int type, int root, Communicator *communicator) {
  return write_own(values, values, count, type, communicator);
}
int ncclAlltoAll() { return write_zeros(); }
int ncclGather() { return write_zeros(); }
int ncclSend() { return write_zeros(); }
int ncclRecv() { return write_zeros(); }
