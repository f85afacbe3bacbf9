// All differences between XLA in the versions of TensorFlow.
#pragma once

#if __has_include("xla/hlo/builder/xla_builder.h")
#define TFDDL_XLA_BUILDER "xla/hlo/builder/xla_builder.h"
#else
#define TFDDL_XLA_BUILDER "xla/client/xla_builder.h"  // up to TensorFlow 2.18
#endif

// The typed interface for custom calls (FFI) came with TensorFlow 2.20. Older versions call a C function.
#if __has_include("xla/ffi/api/ffi.h")
#define TFDDL_XLA_FFI 1
#include "xla/ffi/api/c_api.h"
#else
#define TFDDL_XLA_FFI 0
#endif

// With TensorFlow 2.21, a custom call can ask for its GPU.
#if TFDDL_XLA_FFI && (XLA_FFI_API_MAJOR > 0 || XLA_FFI_API_MINOR >= 2)
#define TFDDL_XLA_GPU 1
#else
#define TFDDL_XLA_GPU 0
#endif
