// TensorFlow's GPU, as the kernels need it.
#pragma once

#include <vector>

#include "tensorflow/attributes.h"

namespace tfddl {

// The stream on which TensorFlow computes.
struct GpuStream {
  int ordinal;   // CUDA's number of the GPU in this process
  void* stream;  // a CUstream
};

// The stream of an op on DEVICE_GPU.
GpuStream GpuStreamOf(tensorflow::OpKernelContext* context);

// The types that GPUs can sum. TensorFlow runs a reduction of another type on the CPU.
std::vector<tensorflow::DataType> TypesReducedOnGpu();

}  // namespace tfddl
