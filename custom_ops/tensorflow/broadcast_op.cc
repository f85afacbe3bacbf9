#include <memory>
#include <utility>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"
#include "tensorflow/shared_output.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

REGISTER_OP("TfddlBroadcast")
    .Input("x: T")
    .Output("y: T")
    .Attr(kTypeAttr)
    .Attr("tensor_name: string")
    .Attr(kProcessSetAttr)
    .Attr("root_rank: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes);

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context, Kind::kBroadcast) {
    OP_REQUIRES_OK(context, context->GetAttr("root_rank", &call_.root));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine) return;
    const int root = engine->MemberOf(call_.root);
    OP_REQUIRES_ASYNC(
        context, root >= 0,
        MakeStatus(absl::StatusCode::kInvalidArgument,
                   "root_rank of '" + call_.name + "' must be " + engine->DescribeMembers() +
                       ": pass the number of such a rank. Received: " + std::to_string(call_.root)),
        done);
    const tf::Tensor& x = context->input(0);
    if (engine->rank() == root) {
      context->set_output(0, x);  // tensors are immutable, so the root's result need not be a copy
    } else {
      tf::Tensor* fresh = nullptr;
      OP_REQUIRES_OK_ASYNC(context, AllocateOrForward(context, ArenaFor(*engine).get(), 0, &fresh), done);
    }
    const tf::Tensor* out = context->mutable_output(0);
    Request request = MakeRequest(context, 1);
    request.root = root;
    request.buffers.push_back({x.data(), out->data(), x.NumElements()});
    auto keep = std::make_shared<std::vector<tf::Tensor>>(std::vector<tf::Tensor>{x, *out});
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlBroadcast").Device(tf::DEVICE_CPU), BroadcastKernel);
REGISTER_KERNEL_BUILDER(Name("TfddlBroadcast").Device(tf::DEVICE_GPU), BroadcastKernel);

}  // namespace
}  // namespace tfddl
