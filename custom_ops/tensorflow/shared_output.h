// Outputs in memory that peers on the host reach.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"
#include "transport/arena.h"

namespace tfddl {

// Makes output `i`: in `arena`, unless that is null, or has no room, or the output is too small to gain by
// it.
absl::Status AllocateOutput(tensorflow::OpKernelContext* context, Arena* arena, int i,
                            const tensorflow::TensorShape& shape, tensorflow::Tensor** out);

// Makes output `i` of the shape of input `i`. Takes the input's memory where nobody else needs it, unless
// that would bring it out of the peers' reach.
absl::Status AllocateOrForward(tensorflow::OpKernelContext* context, Arena* arena, int i,
                               tensorflow::Tensor** out);

}  // namespace tfddl
