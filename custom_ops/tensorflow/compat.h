// All differences between TensorFlow versions on the C++ side.
#pragma once

#include "tensorflow/core/public/version.h"

// The header of its GPUs' streams includes one that includes LLVM's, which the wheel of TensorFlow 2.19 does
// not have. What it declares is an argument of a function that nothing here calls.
#if TF_MINOR_VERSION == 19
#define XLA_STREAM_EXECUTOR_GPU_TMA_METADATA_H_
namespace stream_executor::gpu {
class TmaDescriptor {};
}  // namespace stream_executor::gpu
#endif

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfddl {

// TF 2.16 and later take absl::Status where a kernel reports an error.
inline absl::Status MakeStatus(absl::StatusCode code, const std::string& message) {
  return absl::Status(code, message);
}

}  // namespace tfddl
