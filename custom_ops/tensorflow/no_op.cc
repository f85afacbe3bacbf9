#include "tensorflow/core/framework/op.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// Returns its inputs. Benchmarks compare the collectives with it, to see the fixed cost of an asynchronous
// op.
REGISTER_OP("TfddlNoOp")
    .Input("x: N * T")
    .Output("y: N * T")
    .Attr("T: type")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(SameShapes);

class NoOpKernel : public tf::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
    done();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlNoOp").Device(tf::DEVICE_CPU), NoOpKernel);
REGISTER_KERNEL_BUILDER(Name("TfddlNoOp").Device(tf::DEVICE_GPU), NoOpKernel);

}  // namespace
}  // namespace tfddl
