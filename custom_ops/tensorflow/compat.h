// All differences between TensorFlow versions on the C++ side.
#pragma once

#include "tensorflow/core/public/version.h"

// TensorFlow 2.19's header of GPU streams includes tma_metadata.h, which includes a header of LLVM that the
// wheel lacks. This declares its only class that the other headers name.
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
