/* cuSPARSE: products and solutions of sparse matrices, which are not computed. How many elements a result has depends
   on where the elements of its operands lie, and is assumed. */

#include "closed_library.h"

typedef struct { int64_t rows, columns, elements; } Matrix;

CREATE(cusparseCreate) DESTROY(cusparseDestroy)
CREATE(cusparseCreateDnMat) DESTROY(cusparseDestroyDnMat) CREATE(cusparseCreateDnVec) DESTROY(cusparseDestroyDnVec)
CREATE(cusparseCreateMatDescr) DESTROY(cusparseDestroyMatDescr)
CREATE(cusparseCreateBsrsm2Info) DESTROY(cusparseDestroyBsrsm2Info)
CREATE(cusparseCreateBsrsv2Info) DESTROY(cusparseDestroyBsrsv2Info)
CREATE(cusparseSpGEMM_createDescr) DESTROY(cusparseSpGEMM_destroyDescr)
CREATE(cusparseSpSM_createDescr) DESTROY(cusparseSpSM_destroyDescr)
CREATE(cusparseSpSV_createDescr) DESTROY(cusparseSpSV_destroyDescr)
NOTHING(cusparseSetStream) NOTHING(cusparseSetPointerMode) NOTHING(cusparseDnMatSetStridedBatch)
NOTHING(cusparseSetMatDiagType) NOTHING(cusparseSetMatFillMode) NOTHING(cusparseSetMatIndexBase)
NOTHING(cusparseSetMatType) NOTHING(cusparseCsrSetPointers) NOTHING(cusparseCsrSetStridedBatch)
NOTHING(cusparseSpMatSetAttribute)

int cusparseCreateCsr(Matrix **matrix, int64_t rows, int64_t columns, int64_t elements) {
  *matrix = malloc(sizeof **matrix);
  **matrix = (Matrix){rows, columns, elements};
  OK;
}
int cusparseCreateCoo(Matrix **matrix, int64_t rows, int64_t columns, int64_t elements) {
  return cusparseCreateCsr(matrix, rows, columns, elements);
}
DESTROY(cusparseDestroySpMat)
int cusparseSpMatGetSize(const Matrix *matrix, int64_t *rows, int64_t *columns, int64_t *elements) {
  *rows = matrix->rows;
  *columns = matrix->columns;
  *elements = matrix->elements;
  OK;
}

#define OF_EACH_TYPE(name) \
  KERNEL(cusparseS##name) KERNEL(cusparseD##name) KERNEL(cusparseC##name) KERNEL(cusparseZ##name)
OF_EACH_TYPE(bsrmm) OF_EACH_TYPE(bsrmv) OF_EACH_TYPE(bsrsm2_analysis) OF_EACH_TYPE(bsrsm2_solve)
OF_EACH_TYPE(bsrsv2_analysis) OF_EACH_TYPE(bsrsv2_solve) OF_EACH_TYPE(csrgeam2)
KERNEL(cusparseSpMM) KERNEL(cusparseSpMV) KERNEL(cusparseSDDMM) KERNEL(cusparseSDDMM_preprocess)
KERNEL(cusparseSpSM_analysis) KERNEL(cusparseSpSM_solve) KERNEL(cusparseSpSV_analysis) KERNEL(cusparseSpSV_solve)
KERNEL(cusparseXcoo2csr) KERNEL(cusparseXcoosortByRow) KERNEL(cusparseXcsrsort)
KERNEL(cusparseCreateIdentityPermutation) KERNEL(cusparseSpGEMM_copy)

/* -- buffers -- */

static int no_buffer(size_t *bytes) {
  assumed("cuSPARSE takes no buffers");
  *bytes = 0;
  OK;
}
int cusparseSpMM_bufferSize(void *handle, int a_operation, int b_operation, void *alpha, void *a, void *b, void *beta,
                            void *c, int computed_in, int algorithm, size_t *bytes) {
  return no_buffer(bytes);
}
int cusparseSDDMM_bufferSize(void *handle, int a_operation, int b_operation, void *alpha, void *a, void *b, void *beta,
                             void *c, int computed_in, int algorithm, size_t *bytes) {
  return no_buffer(bytes);
}
int cusparseSpMV_bufferSize(void *handle, int operation, void *alpha, void *a, void *x, void *beta, void *y,
                            int computed_in, int algorithm, size_t *bytes) {
  return no_buffer(bytes);
}
int cusparseSpSM_bufferSize(void *handle, int a_operation, int b_operation, void *alpha, void *a, void *b, void *c,
                            int computed_in, int algorithm, void *description, size_t *bytes) {
  return no_buffer(bytes);
}
int cusparseSpSV_bufferSize(void *handle, int operation, void *alpha, void *a, void *x, void *y, int computed_in,
                            int algorithm, void *description, size_t *bytes) {
  return no_buffer(bytes);
}
int cusparseXcoosort_bufferSizeExt(void *handle, int m, int n, int elements, int *rows, int *columns, size_t *bytes) {
  return no_buffer(bytes);
}
int cusparseXcsrsort_bufferSizeExt(void *handle, int m, int n, int elements, int *rows, int *columns, size_t *bytes) {
  return no_buffer(bytes);
}

#define BUFFER_OF_EACH_TYPE(name, parameters, statement) \
  int cusparseS##name parameters { statement; } \
  int cusparseD##name parameters { statement; } \
  int cusparseC##name parameters { statement; } \
  int cusparseZ##name parameters { statement; }
BUFFER_OF_EACH_TYPE(csrgeam2_bufferSizeExt,
                    (void *handle, int m, int n, void *alpha, void *a, int a_elements, void *a_values, int *a_rows,
                     int *a_columns, void *beta, void *b, int b_elements, void *b_values, int *b_rows, int *b_columns,
                     void *c, void *c_values, int *c_rows, int *c_columns, size_t *bytes),
                    return no_buffer(bytes))
BUFFER_OF_EACH_TYPE(bsrsv2_bufferSize,
                    (void *handle, int direction, int operation, int rows, int blocks, void *a, void *values,
                     int *offsets, int *columns, int size, void *info, int *bytes),
                    *bytes = 0; OK)
BUFFER_OF_EACH_TYPE(bsrsm2_bufferSize,
                    (void *handle, int direction, int a_operation, int b_operation, int rows, int n, int blocks,
                     void *a, void *values, int *offsets, int *columns, int size, void *info, int *bytes),
                    *bytes = 0; OK)

/* -- what the host reads -- */

int cusparseXbsrsv2_zeroPivot(void *handle, void *info, int *position) { *position = -1; OK; }
int cusparseXbsrsm2_zeroPivot(void *handle, void *info, int *position) { *position = -1; OK; }

int cusparseXcsrgeam2Nnz(void *handle, int m, int n, void *a, int a_elements, int *a_rows, int *a_columns, void *b,
                         int b_elements, int *b_rows, int *b_columns, void *c, int *c_rows, int *elements) {
  assumed("the elements of two sparse matrices that are added lie in different places");
  forget_what_was_written();
  *elements = a_elements + b_elements;
  OK;
}
int cusparseSpGEMM_workEstimation(void *handle, int a_operation, int b_operation, void *alpha, Matrix *a, Matrix *b,
                                  void *beta, Matrix *c, int computed_in, int algorithm, void *description,
                                  size_t *bytes, void *buffer) {
  return no_buffer(bytes);
}
int cusparseSpGEMM_compute(void *handle, int a_operation, int b_operation, void *alpha, Matrix *a, Matrix *b,
                           void *beta, Matrix *c, int computed_in, int algorithm, void *description, size_t *bytes,
                           void *buffer) {
  assumed("a product of sparse matrices has as many elements as the larger of them");
  c->elements = a->elements > b->elements ? a->elements : b->elements;
  return no_buffer(bytes);
}
