// The functions that XLA's typed interface (FFI) calls, in programs on the CPU and on GPUs. They need only
// the headers of that interface, so a test can call them without TensorFlow.
#pragma once

#include "xla/compat.h"

#if TFDDL_XLA_FFI
namespace tfddl {

XLA_FFI_Error* CallOnHost(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* StartOnHost(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* FinishOnHost(XLA_FFI_CallFrame* frame);

#if TFDDL_XLA_GPU
XLA_FFI_Error* StartOnGpu(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* FinishOnGpu(XLA_FFI_CallFrame* frame);
#endif

}  // namespace tfddl
#endif
