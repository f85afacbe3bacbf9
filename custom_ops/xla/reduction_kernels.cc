#include "core/request.h"
#include "xla/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

class ReductionKernel : public CallKernel {
 public:
  ReductionKernel(tf::OpKernelConstruction* context, Kind kind) : CallKernel(context, kind) {
    int reduce_op = 0;
    OP_REQUIRES_OK(context, context->GetAttr("reduce_op", &reduce_op));
    OP_REQUIRES_OK(context, context->GetAttr("prescale", &call_.prescale));
    OP_REQUIRES_OK(context, context->GetAttr("postscale", &call_.postscale));
    OP_REQUIRES_OK(context, context->GetAttr("context", &call_.context));
    call_.op = static_cast<ReduceOp>(reduce_op);
  }
};

class AllreduceKernel : public ReductionKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* context) : ReductionKernel(context, Kind::kAllreduce) {
    OP_REQUIRES_OK(context, context->GetAttr("bucket", &call_.bucket));
    OP_REQUIRES_OK(context, context->GetAttr("buckets", &call_.buckets));
  }
};

class ReducescatterKernel : public ReductionKernel {
 public:
  explicit ReducescatterKernel(tf::OpKernelConstruction* context)
      : ReductionKernel(context, Kind::kReducescatter) {}

 protected:
  absl::Status Describe(tf::XlaOpKernelContext* context, Call* call) override {
    return AddRows(context, context->num_inputs(), call);
  }

  std::vector<std::vector<int64_t>> ResultShapes(const Call& call) override {
    auto shapes = call.shapes;
    for (auto& shape : shapes) {
      shape[0] = RowsBegin(shape[0], call.rank + 1, call.size) - RowsBegin(shape[0], call.rank, call.size);
    }
    return shapes;
  }
};

TFDDL_REGISTER_XLA_KERNEL("TfddlAllreduce", AllreduceKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlReducescatter", ReducescatterKernel);

}  // namespace
}  // namespace tfddl
