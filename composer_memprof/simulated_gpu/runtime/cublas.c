/* cuBLAS: products that are not computed. Workspaces are torch's own, and so are in its allocator. */

#include "simulated_gpu.h"

static int product(void) { forget_what_was_written(); OK; }
#define PRODUCT(name) int name() { return product(); }
#define CREATE(name) int name(void **made) { *made = malloc(8); OK; }
#define DESTROY(name) int name(void *made) { free(made); OK; }

CREATE(cublasCreate_v2) DESTROY(cublasDestroy_v2)
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; OK; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; OK; }
NOTHING(cublasSetMathMode) NOTHING(cublasSetPointerMode_v2) NOTHING(cublasSetStream_v2) NOTHING(cublasSetWorkspace_v2)
NOTHING(cublasSetSmCountTarget)

#define OF_EACH_TYPE(name) PRODUCT(cublasS##name) PRODUCT(cublasD##name) PRODUCT(cublasC##name) PRODUCT(cublasZ##name)
OF_EACH_TYPE(gemm_v2) OF_EACH_TYPE(gemv_v2) OF_EACH_TYPE(gemmStridedBatched) OF_EACH_TYPE(trsm_v2)
OF_EACH_TYPE(trsmBatched) OF_EACH_TYPE(gelsBatched) OF_EACH_TYPE(geqrfBatched) OF_EACH_TYPE(getrfBatched)
OF_EACH_TYPE(getrsBatched)
PRODUCT(cublasGemmEx) PRODUCT(cublasSgemmEx) PRODUCT(cublasGemmStridedBatchedEx) PRODUCT(cublasCgemm3m)
PRODUCT(cublasSdot_v2) PRODUCT(cublasDdot_v2) PRODUCT(cublasCdotc_v2) PRODUCT(cublasCdotu_v2)
PRODUCT(cublasZdotc_v2) PRODUCT(cublasZdotu_v2) PRODUCT(cublasDotEx)

CREATE(cublasLtCreate) CREATE(cublasLtMatmulDescCreate) CREATE(cublasLtMatmulPreferenceCreate)
CREATE(cublasLtMatrixLayoutCreate)
DESTROY(cublasLtMatmulDescDestroy) DESTROY(cublasLtMatmulPreferenceDestroy) DESTROY(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatmulDescSetAttribute) NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatmulAlgoInit) NOTHING(cublasLtMatmulAlgoCheck)
PRODUCT(cublasLtMatmul)
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
  *found = 1;
  OK;
}
