// The custom calls that a collective becomes in a compiled program.
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

// Behind what the computation has emitted before: one on the CPU is a call that blocks; several, and all on a
// GPU, are started one after the other, and finished once all of them have been started.
absl::Status Emit(tensorflow::XlaOpKernelContext* context, bool gpu, std::vector<Emission>* emissions);

}  // namespace tfddl
