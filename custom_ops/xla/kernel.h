// The common part of the XLA kernels: turns an op with static shapes into custom calls.
#pragma once

#include <string>
#include <vector>

#include "core/compiled/call.h"
#include "tensorflow/attributes.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/compat.h"

namespace tfddl {

constexpr char kGpuDevice[] = "XLA_GPU_JIT";

// Whether the program will run on a GPU.
bool OnGpu(const tensorflow::OpKernelConstruction* context);

// Sets rank and size of the call's process set.
absl::Status SetRankAndSize(Call* call);

class CallKernel : public tensorflow::XlaOpKernel {
 public:
  CallKernel(tensorflow::OpKernelConstruction* context, Kind kind)
      : XlaOpKernel(context), gpu_(OnGpu(context)) {
    call_.kind = kind;
    OP_REQUIRES_OK(context, ReadCall(context, &call_));
  }

  void Compile(tensorflow::XlaOpKernelContext* context) final;

 protected:
  // Adds the shapes of the inputs to `call`, which has the op's attributes and this process's rank already.
  virtual absl::Status Describe(tensorflow::XlaOpKernelContext* context, Call* call);

  // Sets the outputs after the results of the collective. Their values are known at compile time.
  virtual void SetConstants(tensorflow::XlaOpKernelContext* context, const Call& call) {}

  Call call_;  // the attributes

 private:
  const bool gpu_;
};

// Adds the shapes of `count` inputs to `call`. The inputs have one type.
absl::Status AddInputs(tensorflow::XlaOpKernelContext* context, int count, Call* call, int first = 0);

// The same for an op that splits or joins its inputs along the first dimension.
absl::Status AddRows(tensorflow::XlaOpKernelContext* context, int count, Call* call);

}  // namespace tfddl

// REGISTER_XLA_OP would fail after the first compilation of the process.
#define TFDDL_REGISTER_XLA_CPU_KERNEL(op, kernel) \
  REGISTER_KERNEL_BUILDER(Name(op).Device("XLA_CPU_JIT"), kernel)
#if TFDDL_XLA_GPU
#define TFDDL_REGISTER_XLA_KERNEL(op, kernel) \
  TFDDL_REGISTER_XLA_CPU_KERNEL(op, kernel);  \
  REGISTER_KERNEL_BUILDER(Name(op).Device(kGpuDevice), kernel)
#else
#define TFDDL_REGISTER_XLA_KERNEL TFDDL_REGISTER_XLA_CPU_KERNEL
#endif
