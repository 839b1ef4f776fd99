/* cuDNN's graphs of operations: convolutions and attention. Of each graph there is one engine, whose plan takes no
   workspace of its own; what cudnn-frontend, which is part of torch, adds to the workspace is as on a GPU. */

#include "cudnn.h"

/* What is asked of heuristics, engines, their configurations and plans. */
enum {
  RESULTS = 202, CONFIGURATION_WORKSPACE = 303, SHARED_MEMORY = 304, PLAN_WORKSPACE = 402, ENGINE_COUNT = 802,
  ENGINE_INDEX = 1301
};
enum { TYPE_INT32 = 23 };

int cudnnBackendCreateDescriptor(int type, void **descriptor) { *descriptor = malloc(8); OK; }
DESTROY(cudnnBackendDestroyDescriptor)
NOTHING(cudnnBackendSetAttribute) NOTHING(cudnnBackendFinalize)
KERNEL(cudnnBackendExecute)

int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *elements) {
  int64_t found = 1;
  int64_t value = 0;
  switch (name) {
    case RESULTS: wanted = 0; break; /* the caller has made the descriptor of the one result */
    case PLAN_WORKSPACE: assumed("cuDNN's convolutions and attention take no workspace of their own"); break;
    case ENGINE_COUNT: value = 1; break;
    case CONFIGURATION_WORKSPACE: case SHARED_MEMORY: case ENGINE_INDEX: break;
    default: found = 0; /* notes, knobs and others */
  }
  if (found && wanted > 0) memcpy(elements, &value, type == TYPE_INT32 ? 4 : 8);
  if (count) *count = found;
  OK;
}
