#include <string>

#include "core/process/rank_query.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// Stateful, so that no graph keeps the number of the job in which it was optimised. `included` raises
// nothing.
REGISTER_OP("TfddlRankQuery")
    .Output("y: int32")
    .Attr("query: {'rank', 'size', 'local_rank', 'local_size', 'included'}")
    .Attr("process_set: int = 0")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class RankQueryKernel : public tf::OpKernel {
 public:
  explicit RankQueryKernel(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("query", &query_));
    OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
  }

  void Compute(tf::OpKernelContext* context) override {
    int answer = 0;
    OP_REQUIRES_OK(context, ToStatus(QueryRank(query_, process_set_, &answer), query_));
    tf::Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &y));
    y->scalar<int32_t>()() = answer;
  }

 private:
  std::string query_;
  int process_set_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfddlRankQuery").Device(tf::DEVICE_CPU), RankQueryKernel);
REGISTER_KERNEL_BUILDER(Name("TfddlRankQuery").Device(tf::DEVICE_GPU).HostMemory("y"), RankQueryKernel);

}  // namespace
}  // namespace tfddl
