/* cuFFT: transforms that are not computed. */

#include "closed_library.h"

enum { COMPLEX_HALF = 6, COMPLEX_FLOAT = 4, COMPLEX_DOUBLE = 5 }; /* as in library_types.h */

int cufftCreate(int *plan) { static int plans; *plan = __atomic_add_fetch(&plans, 1, __ATOMIC_RELAXED); OK; }
NOTHING(cufftDestroy) NOTHING(cufftSetAutoAllocation) NOTHING(cufftSetStream) NOTHING(cufftSetWorkArea)
KERNEL(cufftXtExec)

/* cuFFT's documentation gives the work area between 1 and 8 times the transforms' complex elements. */
int cufftXtMakePlanMany(int plan, int rank, long long *sizes, long long *in_sizes, long long in_stride,
                        long long in_distance, int in_type, long long *out_sizes, long long out_stride,
                        long long out_distance, int out_type, long long transforms, size_t *work_area, int type) {
  assumed("cuFFT's work area holds each transform once, in complex numbers");
  size_t elements = transforms;
  for (int i = 0; i < rank; i++) elements *= sizes[i];
  *work_area = elements * (type == COMPLEX_DOUBLE ? 16 : type == COMPLEX_HALF ? 4 : 8);
  OK;
}
