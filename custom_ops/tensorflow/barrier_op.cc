#include <utility>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

REGISTER_OP("TfddlBarrier")
    .Attr("tensor_name: string")
    .Attr(kProcessSetAttr)
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](tf::shape_inference::InferenceContext*) { return absl::OkStatus(); });

class BarrierKernel : public CollectiveKernel {
 public:
  explicit BarrierKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context, Kind::kBarrier) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine) return;
    Submit(engine, context, MakeRequest(context, 0), nullptr, std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlBarrier").Device(tf::DEVICE_CPU), BarrierKernel);
REGISTER_KERNEL_BUILDER(Name("TfddlBarrier").Device(tf::DEVICE_GPU), BarrierKernel);

}  // namespace
}  // namespace tfddl
