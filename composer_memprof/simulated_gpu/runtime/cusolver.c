/* cuSOLVER: factorizations that are not computed. What torch reads back of one is zeros: it succeeded. */

#include "closed_library.h"

CREATE(cusolverDnCreate) DESTROY(cusolverDnDestroy)
CREATE(cusolverDnCreateParams) DESTROY(cusolverDnDestroyParams)
CREATE(cusolverDnCreateGesvdjInfo) DESTROY(cusolverDnDestroyGesvdjInfo)
CREATE(cusolverDnCreateSyevjInfo) DESTROY(cusolverDnDestroySyevjInfo)
NOTHING(cusolverDnSetStream) NOTHING(cusolverDnXgesvdjSetMaxSweeps) NOTHING(cusolverDnXgesvdjSetSortEig)
NOTHING(cusolverDnXgesvdjSetTolerance) NOTHING(cusolverDnXsyevjSetSortEig)

#define OF_EACH_TYPE(name) \
  KERNEL(cusolverDnS##name) KERNEL(cusolverDnD##name) KERNEL(cusolverDnC##name) KERNEL(cusolverDnZ##name)
/* Functions that are named otherwise for complex numbers. */
#define REAL(name) KERNEL(cusolverDnS##name) KERNEL(cusolverDnD##name)
#define COMPLEX(name) KERNEL(cusolverDnC##name) KERNEL(cusolverDnZ##name)
OF_EACH_TYPE(geqrf) OF_EACH_TYPE(gesvd) OF_EACH_TYPE(gesvdj) OF_EACH_TYPE(gesvdjBatched)
OF_EACH_TYPE(gesvdaStridedBatched) OF_EACH_TYPE(getrf) OF_EACH_TYPE(getrs) OF_EACH_TYPE(potrf)
OF_EACH_TYPE(potrfBatched) OF_EACH_TYPE(potrs) OF_EACH_TYPE(potrsBatched) OF_EACH_TYPE(sytrf)
REAL(orgqr) REAL(ormqr) REAL(syevd) REAL(syevj) REAL(syevjBatched)
COMPLEX(ungqr) COMPLEX(unmqr) COMPLEX(heevd) COMPLEX(heevj) COMPLEX(heevjBatched)
KERNEL(cusolverDnXgeqrf) KERNEL(cusolverDnXpotrf) KERNEL(cusolverDnXpotrs) KERNEL(cusolverDnXsyevd)
KERNEL(cusolverDnXsyevBatched) KERNEL(cusolverDnXsytrs) KERNEL(cusolverDnXgeev)

/* -- sizes of workspaces: in elements, and where the function serves every type, in bytes -- */

#define SIZES "cuSOLVER's workspaces are as large as the matrices"
enum { REAL_FLOAT = 0, COMPLEX_DOUBLE = 5 }; /* as in library_types.h; the two others have 8 bytes */

static int as_large_as(long long elements, int *workspace) {
  assumed(SIZES);
  *workspace = elements;
  OK;
}
static int bytes_as_large_as(int64_t elements, int type, size_t *on_device, size_t *on_host) {
  assumed(SIZES);
  *on_device = elements * (type == COMPLEX_DOUBLE ? 16 : type == REAL_FLOAT ? 4 : 8);
  *on_host = 0;
  OK;
}

#define SIZE(name, elements, ...) \
  int cusolverDn##name##_bufferSize(__VA_ARGS__) { return as_large_as(elements, workspace); }
#define SIZE_OF_EACH_TYPE(name, elements, ...) \
  SIZE(S##name, elements, __VA_ARGS__) SIZE(D##name, elements, __VA_ARGS__) \
  SIZE(C##name, elements, __VA_ARGS__) SIZE(Z##name, elements, __VA_ARGS__)
#define SIZE_OF_REAL_AND_COMPLEX(real, complex, elements, ...) \
  SIZE(S##real, elements, __VA_ARGS__) SIZE(D##real, elements, __VA_ARGS__) \
  SIZE(C##complex, elements, __VA_ARGS__) SIZE(Z##complex, elements, __VA_ARGS__)
#define SQUARE ((long long)n * n)
#define WHOLE ((long long)m * n)

SIZE_OF_EACH_TYPE(potrf, SQUARE, void *handle, int triangle, int n, void *a, int stride, int *workspace)
SIZE_OF_EACH_TYPE(sytrf, SQUARE, void *handle, int n, void *a, int stride, int *workspace)
SIZE_OF_EACH_TYPE(geqrf, WHOLE, void *handle, int m, int n, void *a, int stride, int *workspace)
SIZE_OF_EACH_TYPE(getrf, WHOLE, void *handle, int m, int n, void *a, int stride, int *workspace)
SIZE_OF_EACH_TYPE(gesvd, WHOLE, void *handle, int m, int n, int *workspace)
SIZE_OF_EACH_TYPE(gesvdj, WHOLE, void *handle, int job, int economic, int m, int n, void *a, int a_stride, void *s,
                  void *u, int u_stride, void *v, int v_stride, int *workspace)
SIZE_OF_EACH_TYPE(gesvdjBatched, WHOLE * batch, void *handle, int job, int m, int n, void *a, int a_stride, void *s,
                  void *u, int u_stride, void *v, int v_stride, int *workspace, void *parameters, int batch)
SIZE_OF_EACH_TYPE(gesvdaStridedBatched, WHOLE * batch, void *handle, int job, int rank, int m, int n, void *a,
                  int a_stride, long long a_distance, void *s, long long s_distance, void *u, int u_stride,
                  long long u_distance, void *v, int v_stride, long long v_distance, int *workspace, int batch)
SIZE_OF_REAL_AND_COMPLEX(syevd, heevd, SQUARE, void *handle, int job, int triangle, int n, void *a, int stride,
                         void *w, int *workspace)
SIZE_OF_REAL_AND_COMPLEX(syevj, heevj, SQUARE, void *handle, int job, int triangle, int n, void *a, int stride,
                         void *w, int *workspace)
SIZE_OF_REAL_AND_COMPLEX(syevjBatched, heevjBatched, SQUARE * batch, void *handle, int job, int triangle, int n,
                         void *a, int stride, void *w, int *workspace, void *parameters, int batch)
SIZE_OF_REAL_AND_COMPLEX(orgqr, ungqr, WHOLE, void *handle, int m, int n, int k, void *a, int stride, void *tau,
                         int *workspace)
SIZE_OF_REAL_AND_COMPLEX(ormqr, unmqr, WHOLE, void *handle, int side, int operation, int m, int n, int k, void *a,
                         int a_stride, void *tau, void *c, int c_stride, int *workspace)

int cusolverDnXgeqrf_bufferSize(void *handle, void *parameters, int64_t m, int64_t n, int type, void *a, int64_t stride,
                                int tau_type, void *tau, int computed_in, size_t *on_device, size_t *on_host) {
  return bytes_as_large_as(m * n, type, on_device, on_host);
}
int cusolverDnXpotrf_bufferSize(void *handle, void *parameters, int triangle, int64_t n, int type, void *a,
                                int64_t stride, int computed_in, size_t *on_device, size_t *on_host) {
  return bytes_as_large_as(n * n, type, on_device, on_host);
}
int cusolverDnXsyevd_bufferSize(void *handle, void *parameters, int job, int triangle, int64_t n, int type, void *a,
                                int64_t stride, int w_type, void *w, int computed_in, size_t *on_device,
                                size_t *on_host) {
  return bytes_as_large_as(n * n, type, on_device, on_host);
}
int cusolverDnXsyevBatched_bufferSize(void *handle, void *parameters, int job, int triangle, int64_t n, int type,
                                      void *a, int64_t stride, int w_type, void *w, int computed_in, size_t *on_device,
                                      size_t *on_host, int64_t batch) {
  return bytes_as_large_as(n * n * batch, type, on_device, on_host);
}
int cusolverDnXgeev_bufferSize(void *handle, void *parameters, int left_job, int right_job, int64_t n, int type,
                               void *a, int64_t stride, int w_type, void *w, int left_type, void *left,
                               int64_t left_stride, int right_type, void *right, int64_t right_stride, int computed_in,
                               size_t *on_device, size_t *on_host) {
  return bytes_as_large_as(n * n, type, on_device, on_host);
}
int cusolverDnXsytrs_bufferSize(void *handle, int triangle, int64_t n, int64_t columns, int type, void *a,
                                int64_t stride, void *pivots, int b_type, void *b, int64_t b_stride, size_t *on_device,
                                size_t *on_host) {
  return bytes_as_large_as(n * n, type, on_device, on_host);
}
