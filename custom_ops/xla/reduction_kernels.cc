#include "xla/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

class AllreduceKernel : public CallKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* context) : CallKernel(context, Kind::kAllreduce) {
    OP_REQUIRES_OK(context, ReadReduction(context, &call_));
    OP_REQUIRES_OK(context, ReadBucket(context, &call_));
  }
};

class ReducescatterKernel : public CallKernel {
 public:
  explicit ReducescatterKernel(tf::OpKernelConstruction* context)
      : CallKernel(context, Kind::kReducescatter) {
    OP_REQUIRES_OK(context, ReadReduction(context, &call_));
  }

 protected:
  absl::Status Describe(tf::XlaOpKernelContext* context, Call* call) override {
    return AddRows(context, context->num_inputs(), call);
  }
};

TFDDL_REGISTER_XLA_KERNEL("TfddlAllreduce", AllreduceKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlReducescatter", ReducescatterKernel);

}  // namespace
}  // namespace tfddl
