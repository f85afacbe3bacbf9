// Emits custom calls for collectives in a compiled program.
#pragma once

#include <vector>

#include "core/compiled/call.h"
#include "tensorflow/compat.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/compat.h"
#include "xla/shape_util.h"
#include TFDDL_XLA_BUILDER

namespace tfddl {

struct Emission {
  Call call;
  xla::PrimitiveType type = xla::S32;
  std::vector<xla::XlaOp> inputs;
  std::vector<xla::XlaOp> results;  // set by Emit()
};

// Emits collectives after all earlier ones of the computation. A single one on the CPU becomes one blocking
// call. Several ones, and all on a GPU, become a start and a finish each; all starts come before the first
// finish.
absl::Status Emit(tensorflow::XlaOpKernelContext* context, bool gpu, std::vector<Emission>* emissions);

}  // namespace tfddl
