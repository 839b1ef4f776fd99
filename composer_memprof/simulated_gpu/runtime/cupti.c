/* CUPTI, which traces kernels: there are none, and torch's profiler goes on without it. The real one of CUDA 13.2 ends
   the process where there is no driver. Its other functions fail too; the build adds them. */

#include "simulated_gpu.h"

int cuptiGetVersion(unsigned *version) { *version = 0; OK; }
int cuptiGetResultString(int result, const char **text) { *text = "no kernels to trace on a simulated GPU"; OK; }
