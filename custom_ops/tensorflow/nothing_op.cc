#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// The base of the benchmarks: what any asynchronous op of this library costs before it does anything.
REGISTER_OP("TfddlNothing")
    .Input("x: N * T")
    .Output("y: N * T")
    .Attr("T: type")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

class NothingKernel : public tf::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
    done();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlNothing").Device(tf::DEVICE_CPU), NothingKernel);
REGISTER_KERNEL_BUILDER(Name("TfddlNothing").Device(tf::DEVICE_GPU), NothingKernel);

}  // namespace
}  // namespace tfddl
