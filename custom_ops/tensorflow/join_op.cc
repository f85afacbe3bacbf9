#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

REGISTER_OP("TfddlJoin")
    .Output("last: int32")
    .Attr("tensor_name: string")
    .Attr("average_over: {'size', 'active'}")
    .Attr(kProcessSetAttr)
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class JoinKernel : public CollectiveKernel {
 public:
  explicit JoinKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context, Kind::kJoin) {
    std::string over;
    OP_REQUIRES_OK(context, context->GetAttr("average_over", &over));
    average_over_ = over == NameOf(AverageOver::kActive) ? AverageOver::kActive : AverageOver::kSize;
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine) return;
    tf::Tensor* last = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, tf::TensorShape({}), &last), done);
    Request request = MakeRequest(context, 0);
    request.average_over = average_over_;
    request.buffers.push_back({nullptr, last->data(), 1});
    auto keep = std::make_shared<std::vector<tf::Tensor>>(1, *last);
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }

 private:
  AverageOver average_over_ = AverageOver::kSize;
};

REGISTER_KERNEL_BUILDER(Name("TfddlJoin").Device(tf::DEVICE_CPU), JoinKernel);
REGISTER_KERNEL_BUILDER(Name("TfddlJoin").Device(tf::DEVICE_GPU).HostMemory("last"), JoinKernel);

}  // namespace
}  // namespace tfddl
