// What the kernels need to know of TensorFlow's GPU.
#pragma once

#include <vector>

#include "tensorflow/attributes.h"

namespace tfddl {

// Where the op's inputs come from and its outputs go to.
struct GpuPlace {
  int ordinal;   // CUDA's number of the GPU in this process
  void* stream;  // on which TensorFlow computes
};

// Of an op of DEVICE_GPU.
GpuPlace GpuPlaceOf(tensorflow::OpKernelContext* context);

// For kernels that reduce: the types that GPUs can add up. TensorFlow runs an op of another type on the CPU.
std::vector<tensorflow::DataType> TypesReducedOnGpu();

}  // namespace tfddl
