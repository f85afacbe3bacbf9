#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/gpu.h"
#include "tensorflow/kernel.h"
#include "tensorflow/shared_output.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// The inputs of an op form a group: agreed on, reduced and completed together. An op with `buckets` > 1 is
// one bucket of a sequence (base/request.h) with the name `tensor_name`. `context`: further fields of the
// signature; they describe all buckets of the sequence.
REGISTER_OP("TfddlAllreduce")
    .Input("x: N * T")
    .Output("y: N * T")
    .Attr(kTypeAttr)
    .Attr("N: int >= 1")
    .TFDDL_REDUCTION_ATTRS.Attr("bucket: int = 0")
    .Attr("buckets: int = 1")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes);

// All buckets of a sequence in one op, with kernels for XLA only (xla/reduction_kernels.cc). In a compiled
// program each bucket of this op starts as soon as its own inputs exist; separate ops would block one after
// the other. `members`: the number of tensors of each bucket. The tensors of a bucket have one type.
REGISTER_OP("TfddlAllreduceBuckets")
    .Input("x: Ts")
    .Output("y: Ts")
    .Attr("Ts: list(" TFDDL_TYPES ") >= 1")
    .Attr("members: list(int) >= 1")
    .TFDDL_REDUCTION_ATTRS.SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes);

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context, Kind::kAllreduce) {
    OP_REQUIRES_OK(context, ReadReduction(context, &call_));
    OP_REQUIRES_OK(context, ReadBucket(context, &call_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine) return;
    Request request = MakeRequest(context, context->num_inputs());
    auto keep = std::make_shared<std::vector<tf::Tensor>>();
    const auto arena = ArenaFor(*engine);
    std::vector<tf::Tensor*> outs(1);
    OP_REQUIRES_OK_ASYNC(context,
                         context->num_inputs() == 1
                             ? AllocateOrForward(context, arena.get(), 0, outs.data())
                             : AllocateGroup(context, arena.get(), &outs, &request.packed),
                         done);
    request.buffers.reserve(outs.size());
    keep->reserve(2 * outs.size());
    for (int i = 0; i < context->num_inputs(); ++i) {
      const tf::Tensor& out = *outs[static_cast<size_t>(i)];
      request.buffers.push_back({context->input(i).data(), out.data(), out.NumElements()});
      keep->push_back(context->input(i));
      keep->push_back(out);
    }
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlAllreduce").Device(tf::DEVICE_CPU), AllreduceKernel);
REGISTER_KERNEL_BUILDER(
    Name("TfddlAllreduce").Device(tf::DEVICE_GPU).TypeConstraint("T", TypesReducedOnGpu()), AllreduceKernel);

}  // namespace
}  // namespace tfddl
