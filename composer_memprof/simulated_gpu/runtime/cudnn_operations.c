/* cuDNN's operations: convolutions by cuDNN 7's functions, batch norm, pooling, CTC loss, spatial transformers. */

#include "cudnn.h"

KERNEL(cudnnConvolutionForward) KERNEL(cudnnConvolutionBiasActivationForward)
KERNEL(cudnnConvolutionBackwardData) KERNEL(cudnnConvolutionBackwardFilter)
KERNEL(cudnnBatchNormalizationForwardInference) KERNEL(cudnnBatchNormalizationForwardTrainingEx)
KERNEL(cudnnBatchNormalizationBackwardEx)
KERNEL(cudnnPoolingForward) KERNEL(cudnnCTCLoss) KERNEL(cudnnCTCLoss_v8)
KERNEL(cudnnSpatialTfGridGeneratorForward) KERNEL(cudnnSpatialTfGridGeneratorBackward)
KERNEL(cudnnSpatialTfSamplerForward) KERNEL(cudnnSpatialTfSamplerBackward)

/* -- algorithms of convolutions -- */

typedef struct {
  int algorithm, status;
  float milliseconds;
  size_t workspace;
  int deterministic, math_type, reserved[3];
} Algorithm;

/* The same number is an algorithm of each direction; the one forward is IMPLICIT_PRECOMP_GEMM. */
static int one_algorithm(int *count, Algorithm *algorithms) {
  assumed("cuDNN's convolutions take no workspace");
  *count = 1;
  *algorithms = (Algorithm){.algorithm = 1, .milliseconds = 0.01f, .deterministic = 1};
  OK;
}
static int no_workspace(size_t *bytes) { *bytes = 0; OK; }

#define FIND(direction) \
  int cudnnGetConvolution##direction##Algorithm_v7(void *handle, void *a, void *b, void *convolution, void *c, \
                                                   int wanted, int *count, Algorithm *algorithms) { \
    return one_algorithm(count, algorithms); \
  } \
  int cudnnFindConvolution##direction##AlgorithmEx( \
      void *handle, void *a, void *a_data, void *b, void *b_data, void *convolution, void *c, void *c_data, \
      int wanted, int *count, Algorithm *algorithms, void *workspace, size_t bytes) { \
    return one_algorithm(count, algorithms); \
  } \
  int cudnnGetConvolution##direction##WorkspaceSize(void *handle, void *a, void *b, void *convolution, void *c, \
                                                    int algorithm, size_t *bytes) { \
    return no_workspace(bytes); \
  }
FIND(Forward)
FIND(BackwardData)
/* The descriptors' order differs for filters, and is not looked at. */
FIND(BackwardFilter)

/* -- sizes -- */

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x, void *z,
                                                             void *y, void *scale, void *activation, size_t *bytes) {
  assumed("cuDNN's batch norm takes no workspace and reserves nothing for backward");
  return no_workspace(bytes);
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y,
                                                      void *dy, void *dz, void *dx, void *scale, void *activation,
                                                      size_t *bytes) {
  return no_workspace(bytes);
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations, void *activation,
                                                         void *x, size_t *bytes) {
  return no_workspace(bytes);
}
int cudnnGetCTCLossWorkspaceSize(void *handle, void *probabilities, void *gradients, const int *labels,
                                 const int *label_lengths, const int *input_lengths, int algorithm, void *loss,
                                 size_t *bytes) {
  assumed("cuDNN's CTC loss takes no workspace");
  return no_workspace(bytes);
}
int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *loss, void *probabilities, void *gradients,
                                    size_t *bytes) {
  assumed("cuDNN's CTC loss takes no workspace");
  return no_workspace(bytes);
}
