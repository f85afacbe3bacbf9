// Allocates outputs in the arena, so that peers on the host can write to them.
#pragma once

#include <memory>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "transport/arena.h"

namespace tfddl {

// Allocates output `i` in `arena`. If the arena is null or full, or the output is small, TensorFlow allocates
// it.
absl::Status AllocateOutput(tensorflow::OpKernelContext* context, Arena* arena, int i,
                            const tensorflow::TensorShape& shape, tensorflow::Tensor** out);

// Allocates output `i` with the shape of input `i`. Prefers the arena; else reuses the memory of the input if
// nothing else needs it.
absl::Status AllocateOrForward(tensorflow::OpKernelContext* context, Arena* arena, int i,
                               tensorflow::Tensor** out);

// Allocates all outputs, each with the shape of its input, one after the other in a block of `arena`, *packed
// (Request::packed). Without room, *packed is null and TensorFlow allocates the outputs; it also allocates
// each output whose address in the block would not be aligned.
absl::Status AllocateGroup(tensorflow::OpKernelContext* context, Arena* arena,
                           std::vector<tensorflow::Tensor*>* outs, std::shared_ptr<char>* packed);

}  // namespace tfddl
