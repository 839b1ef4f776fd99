/* What the files of the simulated cuDNN share. Numbers are those of NVIDIA's cudnn_graph.h and cudnn_adv.h. */

#include "closed_library.h"

enum { MOST_DIMENSIONS = 8, NOT_SUPPORTED = 3000 };
enum { DATA_FLOAT = 0, DATA_DOUBLE = 1, DATA_HALF = 2, DATA_INT32 = 4, DATA_BFLOAT16 = 9, DATA_INT64 = 10 };

/* A tensor or a filter, which has no strides. */
typedef struct { int type, format, dimensions, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS]; } Tensor;

__attribute__((visibility("hidden"))) size_t bytes_of_type(int type);
