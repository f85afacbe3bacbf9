#include <string>

#include "core/process.h"
#include "tensorflow/compat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// Stateful, so that no graph keeps the number of the job in which it was optimised.
REGISTER_OP("TfddlPlace")
    .Output("y: int32")
    .Attr("what: {'rank', 'size', 'local_rank', 'local_size'}")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class PlaceKernel : public tf::OpKernel {
 public:
  explicit PlaceKernel(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const auto engine = CurrentEngine();
    OP_REQUIRES(
        context, engine,
        MakeStatus(absl::StatusCode::kFailedPrecondition, "tfddl has not been initialized; use hvd.init()."));
    tf::Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &y));
    const LocalPlace local = CurrentLocalPlace();
    y->scalar<int32_t>()() = what_ == "rank"         ? engine->rank()
                             : what_ == "size"       ? engine->size()
                             : what_ == "local_rank" ? local.rank
                                                     : local.size;
  }

 private:
  std::string what_;
};

REGISTER_KERNEL_BUILDER(Name("TfddlPlace").Device(tf::DEVICE_CPU), PlaceKernel);

}  // namespace
}  // namespace tfddl
