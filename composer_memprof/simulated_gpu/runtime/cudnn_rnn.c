/* cuDNN's recurrent networks. The weights' buffer has the matrices of every layer and direction, then their biases. */

#include "cudnn.h"

enum { MODE_LSTM = 2, MODE_GRU = 3 };
enum { NO_BIAS = 0, DOUBLE_BIAS = 2 };

typedef struct {
  int mode, bias_mode, directions, type;
  long long input_size, hidden_size, output_size, layers;
} Network;
typedef struct { int type, steps, batch; } Data;

int cudnnCreateRNNDescriptor(Network **network) { *network = calloc(1, sizeof **network); OK; }
int cudnnCreateRNNDataDescriptor(Data **data) { *data = calloc(1, sizeof **data); OK; }
DESTROY(cudnnDestroyRNNDescriptor) DESTROY(cudnnDestroyRNNDataDescriptor)

int cudnnSetRNNDescriptor_v8(Network *network, int algorithm, int mode, int bias_mode, int bidirectional,
                             int input_mode, int type, int math_type, int math_mode, int input_size, int hidden_size,
                             int projected_size, int layers, void *dropout, unsigned flags) {
  *network = (Network){mode, bias_mode, bidirectional ? 2 : 1, type, input_size, hidden_size, projected_size, layers};
  OK;
}
int cudnnSetRNNDataDescriptor(Data *data, int type, int layout, int steps, int batch, int vector_size,
                              const int *lengths, void *padding) {
  *data = (Data){type, steps, batch};
  OK;
}

/* -- weights -- */

static int gates_of(const Network *network) {
  return network->mode == MODE_LSTM ? 4 : network->mode == MODE_GRU ? 3 : 1;
}
static int biases_of(const Network *network) {
  return network->bias_mode == NO_BIAS ? 0 : network->bias_mode == DOUBLE_BIAS ? 2 : 1;
}
static int is_projected(const Network *network) { return network->output_size != network->hidden_size; }

/* What a layer takes in: the data, or the outputs of both directions of the layer before. */
static long long inputs_of(const Network *network, int layer) {
  return layer ? network->output_size * network->directions : network->input_size;
}

/* Elements of one layer's matrices, in one direction. */
static long long matrices_of(const Network *network, int layer) {
  long long taken_in = inputs_of(network, layer) + network->output_size;
  long long projection = is_projected(network) ? network->output_size : 0;
  return network->hidden_size * (gates_of(network) * taken_in + projection);
}

/* Elements of the matrices before those of a layer and direction, which `place` counts together. */
static long long matrices_before(const Network *network, int place) {
  long long elements = 0;
  for (int i = 0; i < place; i++) elements += matrices_of(network, i / network->directions);
  return elements;
}

int cudnnGetRNNWeightSpaceSize(void *handle, const Network *network, size_t *bytes) {
  long long places = network->layers * network->directions;
  long long biases = places * biases_of(network) * gates_of(network) * network->hidden_size;
  *bytes = (matrices_before(network, places) + biases) * bytes_of_type(network->type);
  OK;
}

static void describe(Tensor *tensor, int type, int rows, int columns) {
  *tensor = (Tensor){type, 0, 3, {1, rows, columns}, {rows * columns, columns, 1}};
}

/* `which` counts the gates' input matrices, their recurrent ones, and the projection. */
int cudnnGetRNNWeightParams(void *handle, const Network *network, int place, size_t bytes, char *weights, int which,
                            Tensor *matrix, void **matrix_address, Tensor *bias, void **bias_address) {
  int gates = gates_of(network);
  int element = bytes_of_type(network->type);
  long long hidden = network->hidden_size;
  if (matrix) {
    long long inputs = inputs_of(network, place / network->directions);
    long long offset = matrices_before(network, place);
    if (which < gates) {
      describe(matrix, network->type, hidden, inputs);
      offset += which * hidden * inputs;
    } else if (which < 2 * gates) {
      describe(matrix, network->type, hidden, network->output_size);
      offset += gates * hidden * inputs + (which - gates) * hidden * network->output_size;
    } else {
      describe(matrix, network->type, network->output_size, hidden);
      offset += gates * hidden * (inputs + network->output_size);
    }
    *matrix_address = weights + offset * element;
  }
  if (bias) {
    long long each = (long long)biases_of(network) * gates * hidden;
    describe(bias, network->type, hidden, 1);
    *bias_address = weights + (matrices_before(network, network->layers * network->directions) + place * each +
                               which * hidden) * element;
  }
  OK;
}

/* -- space -- */

/* Numbers of each unit at each place of a sequence that backward needs. cuDNN does not document them. The sizes that it gave
   for 4 layers of 320 units (so many have these parameters), 736,000,000 B for an LSTM and 864,000,000 B for a GRU
   (https://github.com/pytorch/pytorch/issues/2895), are 6 and 7
   of each layer at 25,000 places, without the outputs of the last layer, which cuDNN gets back. */
static int kept_of_layer(const Network *network) {
  if (network->mode == MODE_LSTM) return 6; /* four gates, the cell, the output */
  if (network->mode == MODE_GRU) return 7;
  return 2;
}

int cudnnGetRNNTempSpaceSizes(void *handle, const Network *network, int training, const Data *data, size_t *workspace,
                              size_t *reserve) {
  assumed("a recurrent network of cuDNN takes no workspace, and keeps its gates, cells and outputs for backward");
  int kept = network->layers * kept_of_layer(network) - 1;
  if (workspace) *workspace = 0;
  if (reserve)
    *reserve = training ? network->directions * network->hidden_size * kept * data->steps *
                              data->batch * bytes_of_type(data->type)
                        : 0;
  OK;
}

KERNEL(cudnnRNNForward) KERNEL(cudnnRNNBackwardData_v8) KERNEL(cudnnRNNBackwardWeights_v8)

/* -- dropout between layers -- */

enum { RANDOM_STATE = 48 }; /* bytes of cuRAND's curandState */

int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
  assumed("cuDNN's dropout has one random state of 48 B for each thread that the device runs at once");
  *bytes = figure("multiprocessors") * figure("threads_per_multiprocessor") * RANDOM_STATE;
  OK;
}
KERNEL(cudnnSetDropoutDescriptor) NOTHING(cudnnRestoreDropoutDescriptor)
