// All differences between TensorFlow versions on the C++ side.
#pragma once

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfddl {

// TF 2.16 and later take absl::Status where a kernel reports an error.
inline absl::Status MakeStatus(absl::StatusCode code, const std::string& message) {
  return absl::Status(code, message);
}

}  // namespace tfddl
