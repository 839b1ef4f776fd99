/* cuBLAS: products that are not computed. Workspaces are torch's own, and so are in its allocator. */

#include "closed_library.h"

CREATE(cublasCreate_v2) DESTROY(cublasDestroy_v2)
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; OK; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; OK; }
NOTHING(cublasSetMathMode) NOTHING(cublasSetPointerMode_v2) NOTHING(cublasSetStream_v2) NOTHING(cublasSetWorkspace_v2)
NOTHING(cublasSetSmCountTarget)

#define OF_EACH_TYPE(name) KERNEL(cublasS##name) KERNEL(cublasD##name) KERNEL(cublasC##name) KERNEL(cublasZ##name)
OF_EACH_TYPE(gemm_v2) OF_EACH_TYPE(gemv_v2) OF_EACH_TYPE(gemmStridedBatched) OF_EACH_TYPE(trsm_v2)
OF_EACH_TYPE(trsmBatched) OF_EACH_TYPE(gelsBatched) OF_EACH_TYPE(geqrfBatched) OF_EACH_TYPE(getrfBatched)
OF_EACH_TYPE(getrsBatched)
KERNEL(cublasGemmEx) KERNEL(cublasSgemmEx) KERNEL(cublasGemmStridedBatchedEx) KERNEL(cublasCgemm3m)
KERNEL(cublasSdot_v2) KERNEL(cublasDdot_v2) KERNEL(cublasCdotc_v2) KERNEL(cublasCdotu_v2)
KERNEL(cublasZdotc_v2) KERNEL(cublasZdotu_v2) KERNEL(cublasDotEx)

CREATE(cublasLtCreate) CREATE(cublasLtMatmulDescCreate) CREATE(cublasLtMatmulPreferenceCreate)
CREATE(cublasLtMatrixLayoutCreate)
DESTROY(cublasLtMatmulDescDestroy) DESTROY(cublasLtMatmulPreferenceDestroy) DESTROY(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatmulDescSetAttribute) NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatmulAlgoInit) NOTHING(cublasLtMatmulAlgoCheck)
KERNEL(cublasLtMatmul)
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
  *found = 1;
  OK;
}
