#include <cstdlib>
#include <memory>
#include <utility>

#include "core/reduce.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// The factors are strings, because attributes know no double and a float32 factor would cost a float64
// tensor half of its digits. Ranks compare them as written.
// The inputs of one op are one group: agreed on, reduced and completed together. An op with
// `buckets` > 1 is one bucket of a sequence (core/request.h), which `tensor_name` names and whose
// `context` describes all its buckets; of another op it is what else ranks must agree on.
REGISTER_OP("TfddlAllreduce")
    .Input("x: N * T")
    .Output("y: N * T")
    .Attr(kTypeAttr)
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr("reduce_op: int")
    .Attr("prescale: string = '1.0'")
    .Attr("postscale: string = '1.0'")
    .Attr("context: string = ''")
    .Attr("bucket: int = 0")
    .Attr("buckets: int = 1")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context) {
    int reduce_op = 0;
    OP_REQUIRES_OK(context, context->GetAttr("reduce_op", &reduce_op));
    OP_REQUIRES_OK(context, context->GetAttr("prescale", &prescale_text_));
    OP_REQUIRES_OK(context, context->GetAttr("postscale", &postscale_text_));
    prescale_ = std::strtod(prescale_text_.c_str(), nullptr);
    postscale_ = std::strtod(postscale_text_.c_str(), nullptr);
    OP_REQUIRES_OK(context, context->GetAttr("context", &context_));
    OP_REQUIRES_OK(context, context->GetAttr("bucket", &bucket_));
    OP_REQUIRES_OK(context, context->GetAttr("buckets", &buckets_));
    op_ = static_cast<ReduceOp>(reduce_op);
    tf::DataType dtype;
    OP_REQUIRES_OK(context, context->GetAttr("T", &dtype));
    OP_REQUIRES(context, Supports(op_, ToDataType(dtype)),
                MakeStatus(absl::StatusCode::kInvalidArgument,
                           "allreduce does not support this reduce_op for this dtype. Received: reduce_op=" +
                               std::to_string(reduce_op) + ", " + NameOf(ToDataType(dtype))));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine) return;
    Request request = MakeRequest(context, Kind::kAllreduce);
    request.op = op_;
    request.prescale = prescale_;
    request.postscale = postscale_;
    request.bucket = bucket_;
    request.buckets = buckets_;
    request.signature = Signature(context);
    auto keep = std::make_shared<std::vector<tf::Tensor>>();
    for (int i = 0; i < context->num_inputs(); ++i) {
      tf::Tensor* out = nullptr;
      OP_REQUIRES_OK_ASYNC(
          context, context->forward_input_or_allocate_output({i}, i, context->input(i).shape(), &out), done);
      request.buffers.push_back({context->input(i).data(), out->data(), out->NumElements()});
      keep->push_back(context->input(i));
      keep->push_back(*out);
    }
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }

 private:
  std::string Signature(tf::OpKernelContext* context) const {
    const std::string factors = "prescale " + prescale_text_ + ", postscale " + postscale_text_;
    std::vector<std::string> fields = {NameOf(Kind::kAllreduce), NameOf(op_), factors};
    if (buckets_ > 1) fields.push_back(std::to_string(buckets_) + " buckets");
    if (!context_.empty()) fields.push_back(context_);
    if (buckets_ > 1) return MakeSignature(fields);
    for (int i = 0; i < context->num_inputs(); ++i) {
      const tf::Tensor& x = context->input(i);
      fields.push_back(DescribeTensor(ToDataType(x.dtype()), ToShape(x.shape())));
    }
    return MakeSignature(fields);
  }

  ReduceOp op_ = ReduceOp::kSum;
  std::string prescale_text_;
  std::string postscale_text_;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  std::string context_;
  int bucket_ = 0;
  int buckets_ = 1;
};

REGISTER_KERNEL_BUILDER(Name("TfddlAllreduce").Device(tf::DEVICE_CPU), AllreduceKernel);

}  // namespace
}  // namespace tfddl
