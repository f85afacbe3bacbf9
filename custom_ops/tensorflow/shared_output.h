// Outputs in memory that peers on the host reach.
#pragma once

#include <memory>
#include <vector>

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

// Makes all outputs, each of the shape of its input: in a block of `arena` one behind the other, *packed
// (Request::packed), or where there is no room and *packed is null, by themselves. By itself lies also what
// would not begin on a line there.
absl::Status AllocateGroup(tensorflow::OpKernelContext* context, Arena* arena,
                           std::vector<tensorflow::Tensor*>* outs, std::shared_ptr<char>* packed);

}  // namespace tfddl
