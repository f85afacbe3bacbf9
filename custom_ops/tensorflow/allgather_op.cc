#include <memory>
#include <utility>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// `rows` is the first dimension of each rank, which the gradient needs to find its own part.
REGISTER_OP("TfddlAllgather")
    .Input("x: T")
    .Output("y: T")
    .Output("rows: int64")
    .Attr(kTypeAttr)
    .Attr("tensor_name: string")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle y = c->input(0);
      if (c->RankKnown(y)) {
        TF_RETURN_IF_ERROR(c->WithRankAtLeast(y, 1, &y));
        TF_RETURN_IF_ERROR(c->ReplaceDim(y, 0, c->UnknownDim(), &y));
      }
      c->set_output(0, y);
      c->set_output(1, c->Vector(tf::shape_inference::InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

class AllgatherKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine) return;
    const tf::Tensor& x = context->input(0);
    if (!RequireRows(context, x, done)) return;
    Request request = MakeRequest(context, Kind::kAllgather);
    std::vector<int64_t> shape = ToShape(x.shape());
    request.rows = shape[0];
    shape[0] = -1;  // may differ by rank
    request.signature = MakeSignature({NameOf(Kind::kAllgather), DescribeTensor(request.dtype, shape)});
    request.buffers.push_back({x.data(), nullptr, x.NumElements()});
    auto keep = std::make_shared<std::vector<tf::Tensor>>(std::vector<tf::Tensor>{x});
    request.allocate = [context, keep](const std::vector<int64_t>& rows, void** out) {
      return Allocate(context, keep, rows, out);
    };
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }

 private:
  static Status Allocate(tf::OpKernelContext* context, const Tensors& keep, const std::vector<int64_t>& rows,
                         void** out) {
    int64_t total = 0;
    for (int64_t count : rows) total += count;
    tf::TensorShape shape = context->input(0).shape();
    shape.set_dim(0, total);
    tf::Tensor* y = nullptr;
    tf::Tensor* y_rows = nullptr;
    absl::Status status = context->allocate_output(0, shape, &y);
    if (status.ok()) {
      status = context->allocate_output(1, tf::TensorShape({static_cast<int64_t>(rows.size())}), &y_rows);
    }
    if (!status.ok()) return Status(Code::kResourceExhausted, std::string(status.message()));
    for (size_t i = 0; i < rows.size(); ++i) y_rows->vec<int64_t>()(static_cast<int64_t>(i)) = rows[i];
    keep->push_back(*y);
    *out = y->data();
    return Status();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlAllgather").Device(tf::DEVICE_CPU), AllgatherKernel);

}  // namespace
}  // namespace tfddl
