/* cuBLAS: products that are not computed. Workspaces are torch's own, and so are in its allocator. */

#include "closed_library.h"

CREATE(cublasCreate_v2) DESTROY(cublasDestroy_v2)
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; OK; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; OK; }
NOTHING(cublasSetMathMode) NOTHING(cublasSetPointerMode_v2) NOTHING(cublasSetWorkspace_v2)
NOTHING(cublasSetSmCountTarget)
int cublasSetStream_v2(void *handle, void *stream) { library_uses(stream); OK; }

#define OF_EACH_TYPE(name) KERNEL(cublasS##name) KERNEL(cublasD##name) KERNEL(cublasC##name) KERNEL(cublasZ##name)
#define COMPLEX(name) KERNEL(cublasC##name) KERNEL(cublasZ##name)
OF_EACH_TYPE(gemm_v2) OF_EACH_TYPE(gemv_v2) OF_EACH_TYPE(gemmBatched) OF_EACH_TYPE(gemmStridedBatched)
OF_EACH_TYPE(trsm_v2) OF_EACH_TYPE(trsmBatched) OF_EACH_TYPE(getrfBatched)
KERNEL(cublasGemmEx) KERNEL(cublasSgemmEx) KERNEL(cublasGemmStridedBatchedEx) KERNEL(cublasCgemm3m)
KERNEL(cublasSdot_v2) KERNEL(cublasDdot_v2) KERNEL(cublasCdotc_v2) KERNEL(cublasCdotu_v2)
KERNEL(cublasZdotc_v2) KERNEL(cublasZdotu_v2) KERNEL(cublasDotEx)

/* -- what MAGMA calls, a library of factorizations that is part of torch -- */

OF_EACH_TYPE(axpy_v2) OF_EACH_TYPE(copy_v2) OF_EACH_TYPE(scal_v2) OF_EACH_TYPE(swap_v2) OF_EACH_TYPE(symm_v2)
OF_EACH_TYPE(symv_v2) OF_EACH_TYPE(syr_v2) OF_EACH_TYPE(syr2_v2) OF_EACH_TYPE(syr2k_v2) OF_EACH_TYPE(syrk_v2)
OF_EACH_TYPE(trmm_v2) OF_EACH_TYPE(trmv_v2) OF_EACH_TYPE(trsv_v2)
COMPLEX(gerc_v2) COMPLEX(geru_v2) COMPLEX(hemm_v2) COMPLEX(hemv_v2) COMPLEX(her_v2) COMPLEX(her2_v2) COMPLEX(her2k_v2)
COMPLEX(herk_v2)
KERNEL(cublasSger_v2) KERNEL(cublasDger_v2) KERNEL(cublasCsscal_v2) KERNEL(cublasZdscal_v2)

#define REDUCTION(name, type, result) \
  int cublas##name##_v2(void *handle, int n, void *x, int step, type *to) { \
    forget_what_was_written(); \
    if (!is_on_device(to)) *to = result; \
    OK; \
  }
REDUCTION(Sasum, float, 0) REDUCTION(Dasum, double, 0) REDUCTION(Scasum, float, 0) REDUCTION(Dzasum, double, 0)
REDUCTION(Snrm2, float, 0) REDUCTION(Dnrm2, double, 0) REDUCTION(Scnrm2, float, 0) REDUCTION(Dznrm2, double, 0)
REDUCTION(Isamax, int, 1) REDUCTION(Idamax, int, 1) REDUCTION(Icamax, int, 1) REDUCTION(Izamax, int, 1)
REDUCTION(Isamin, int, 1) REDUCTION(Idamin, int, 1) REDUCTION(Icamin, int, 1) REDUCTION(Izamin, int, 1)

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                      int kind, void *stream);
#define COPY_OF_MATRIX(name) \
  int name(int rows, int columns, int element, void *from, int from_stride, void *to, int to_stride, void *stream) { \
    return cudaMemcpy2DAsync(to, (size_t)to_stride * element, from, (size_t)from_stride * element, \
                             (size_t)rows * element, columns, cudaMemcpyDefault, stream); \
  }
#define COPY_OF_VECTOR(name) \
  int name(int n, int element, void *from, int from_step, void *to, int to_step, void *stream) { \
    return cudaMemcpy2DAsync(to, (size_t)to_step * element, from, (size_t)from_step * element, element, n, \
                             cudaMemcpyDefault, stream); \
  }
COPY_OF_MATRIX(cublasGetMatrixAsync) COPY_OF_MATRIX(cublasSetMatrixAsync)
COPY_OF_VECTOR(cublasGetVectorAsync) COPY_OF_VECTOR(cublasSetVectorAsync)

/* -- factorizations and solutions, which tell the host that they succeeded -- */

#define SOLVER(name, ...) int name(__VA_ARGS__) { forget_what_was_written(); *info = 0; OK; }
#define SOLVER_OF_EACH_TYPE(name, ...) \
  SOLVER(cublasS##name, __VA_ARGS__) SOLVER(cublasD##name, __VA_ARGS__) \
  SOLVER(cublasC##name, __VA_ARGS__) SOLVER(cublasZ##name, __VA_ARGS__)
SOLVER_OF_EACH_TYPE(geqrfBatched, void *handle, int m, int n, void *a, int stride, void *tau, int *info, int batch)
SOLVER_OF_EACH_TYPE(gelsBatched, void *handle, int operation, int m, int n, int columns, void *a, int a_stride, void *c,
                    int c_stride, int *info, int *info_on_device, int batch)
SOLVER_OF_EACH_TYPE(getrsBatched, void *handle, int operation, int n, int columns, void *a, int a_stride, void *pivots,
                    void *b, int b_stride, int *info, int batch)

/* -- cuBLASLt -- */

CREATE(cublasLtCreate) CREATE(cublasLtMatmulDescCreate) CREATE(cublasLtMatmulPreferenceCreate)
CREATE(cublasLtMatrixLayoutCreate)
DESTROY(cublasLtMatmulDescDestroy) DESTROY(cublasLtMatmulPreferenceDestroy) DESTROY(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatmulDescSetAttribute) NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatmulAlgoInit) NOTHING(cublasLtMatmulAlgoCheck)
int cublasLtMatmul(void *handle, void *operation, void *alpha, void *a, void *a_layout, void *b, void *b_layout,
                   void *beta, void *c, void *c_layout, void *d, void *d_layout, void *algorithm, void *workspace,
                   size_t bytes, void *stream) {
  kernel_launched(stream);
  forget_what_was_written();
  OK;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
  *found = 1;
  OK;
}
