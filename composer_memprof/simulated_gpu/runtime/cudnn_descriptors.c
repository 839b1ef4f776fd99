/* cuDNN: its handle and its descriptors. What torch reads back from them is what it set. */

#include "cudnn.h"

typedef struct { void *stream; } Handle;

int cudnnCreate(Handle **handle) { *handle = calloc(1, sizeof **handle); OK; }
DESTROY(cudnnDestroy)
int cudnnSetStream(Handle *handle, void *stream) {
  library_uses(stream);
  handle->stream = stream;
  OK;
}
int cudnnGetStream(Handle *handle, void **stream) { *stream = handle->stream; OK; }

size_t bytes_of_type(int type) {
  switch (type) {
    case DATA_DOUBLE: case DATA_INT64: return 8;
    case DATA_FLOAT: case DATA_INT32: return 4;
    case DATA_HALF: case DATA_BFLOAT16: return 2;
    default: return 1;
  }
}

/* -- tensors and filters -- */

int cudnnCreateTensorDescriptor(Tensor **tensor) { *tensor = calloc(1, sizeof **tensor); OK; }
int cudnnCreateFilterDescriptor(Tensor **filter) { return cudnnCreateTensorDescriptor(filter); }
DESTROY(cudnnDestroyTensorDescriptor) DESTROY(cudnnDestroyFilterDescriptor)

int cudnnSetTensorNdDescriptor(Tensor *tensor, int type, int dimensions, const int *sizes, const int *strides) {
  if (dimensions > MOST_DIMENSIONS) return NOT_SUPPORTED;
  tensor->type = type;
  tensor->dimensions = dimensions;
  memcpy(tensor->sizes, sizes, dimensions * sizeof *sizes);
  memcpy(tensor->strides, strides, dimensions * sizeof *strides);
  OK;
}
int cudnnSetFilterNdDescriptor(Tensor *filter, int type, int format, int dimensions, const int *sizes) {
  filter->format = format;
  return cudnnSetTensorNdDescriptor(filter, type, dimensions, sizes, sizes);
}

static int shown(const Tensor *tensor, int most) { return tensor->dimensions < most ? tensor->dimensions : most; }

int cudnnGetTensorNdDescriptor(const Tensor *tensor, int most, int *type, int *dimensions, int *sizes, int *strides) {
  *type = tensor->type;
  *dimensions = tensor->dimensions;
  memcpy(sizes, tensor->sizes, shown(tensor, most) * sizeof *sizes);
  memcpy(strides, tensor->strides, shown(tensor, most) * sizeof *strides);
  OK;
}
int cudnnGetFilterNdDescriptor(const Tensor *filter, int most, int *type, int *format, int *dimensions, int *sizes) {
  *type = filter->type;
  *format = filter->format;
  *dimensions = filter->dimensions;
  memcpy(sizes, filter->sizes, shown(filter, most) * sizeof *sizes);
  OK;
}

/* -- others, which nobody reads back -- */

#define DESCRIPTOR(name) CREATE(cudnnCreate##name##Descriptor) DESTROY(cudnnDestroy##name##Descriptor)
DESCRIPTOR(Activation) DESCRIPTOR(Convolution) DESCRIPTOR(CTCLoss) DESCRIPTOR(Dropout) DESCRIPTOR(Pooling)
DESCRIPTOR(SpatialTransformer)
NOTHING(cudnnSetActivationDescriptor) NOTHING(cudnnSetPooling2dDescriptor)
NOTHING(cudnnSetSpatialTransformerNdDescriptor) NOTHING(cudnnSetConvolutionNdDescriptor)
NOTHING(cudnnSetConvolutionGroupCount) NOTHING(cudnnSetConvolutionMathType)
NOTHING(cudnnSetCTCLossDescriptorEx) NOTHING(cudnnSetCTCLossDescriptor_v9)
