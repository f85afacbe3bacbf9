// All differences between the XLAs of TensorFlow's versions.
#pragma once

#if __has_include("xla/hlo/builder/xla_builder.h")
#define TFDDL_XLA_BUILDER "xla/hlo/builder/xla_builder.h"
#else
#define TFDDL_XLA_BUILDER "xla/client/xla_builder.h"  // up to TensorFlow 2.18
#endif

// The typed interface for custom calls came with TensorFlow 2.20; before, a C function does.
#if __has_include("xla/ffi/api/ffi.h")
#define TFDDL_XLA_FFI 1
#else
#define TFDDL_XLA_FFI 0
#endif

namespace tfddl {

// What both sides of a compiled call need to know of each other: kernel.cc emits it, target.cc runs it.
constexpr char kTarget[] = "tfddl_call";
constexpr char kTargetAttribute[] = "call";

}  // namespace tfddl
