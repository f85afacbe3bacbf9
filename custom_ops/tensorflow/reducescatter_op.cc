#include <memory>
#include <utility>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/gpu.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// The number of rows of a result depends on the rank, which the graph does not know. So the first dimension
// is unknown.
REGISTER_OP("TfddlReducescatter")
    .Input("x: N * T")
    .Output("y: N * T")
    .Attr(kTypeAttr)
    .Attr("N: int >= 1")
    .TFDDL_REDUCTION_ATTRS.SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(UnknownRows);

class ReducescatterKernel : public CollectiveKernel {
 public:
  explicit ReducescatterKernel(tf::OpKernelConstruction* context)
      : CollectiveKernel(context, Kind::kReducescatter) {
    OP_REQUIRES_OK(context, ReadReduction(context, &call_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine || !RequireRows(context, context->num_inputs(), done)) return;
    Request request = MakeRequest(context, context->num_inputs());
    auto keep = std::make_shared<std::vector<tf::Tensor>>();
    for (int i = 0; i < context->num_inputs(); ++i) {
      const tf::Tensor& x = context->input(i);
      const int64_t rows = x.dim_size(0);
      tf::TensorShape shape = x.shape();
      shape.set_dim(0, RowsOf(rows, engine->rank(), engine->size()));
      tf::Tensor* y = nullptr;
      OP_REQUIRES_OK_ASYNC(context, context->allocate_output(i, shape, &y), done);
      request.buffers.push_back({x.data(), y->data(), x.NumElements(), rows, RowElements(x)});
      keep->push_back(x);
      keep->push_back(*y);
    }
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlReducescatter").Device(tf::DEVICE_CPU), ReducescatterKernel);
REGISTER_KERNEL_BUILDER(
    Name("TfddlReducescatter").Device(tf::DEVICE_GPU).TypeConstraint("T", TypesReducedOnGpu()),
    ReducescatterKernel);

}  // namespace
}  // namespace tfddl
