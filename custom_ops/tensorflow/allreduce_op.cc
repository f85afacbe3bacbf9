#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/gpu.h"
#include "tensorflow/kernel.h"
#include "tensorflow/shared_output.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// The inputs of one op are one group: agreed on, reduced and completed together. An op with
// `buckets` > 1 is one bucket of a sequence (base/request.h), which `tensor_name` names and whose
// `context` describes all its buckets; of another op it is what else ranks must agree on.
REGISTER_OP("TfddlAllreduce")
    .Input("x: N * T")
    .Output("y: N * T")
    .Attr(kTypeAttr)
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr(kProcessSetAttr)
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

// All buckets of a sequence in one op, for programs that XLA compiles, which has the only kernels: there each
// starts when its own inputs exist, and an op of its own would wait where it stands. `members` are the
// numbers of tensors in the buckets, which are of one type each.
REGISTER_OP("TfddlAllreduceBuckets")
    .Input("x: Ts")
    .Output("y: Ts")
    .Attr(
        "Ts: list({half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
        "bool, complex64, complex128}) >= 1")
    .Attr("members: list(int) >= 1")
    .Attr("tensor_name: string")
    .Attr(kProcessSetAttr)
    .Attr("reduce_op: int")
    .Attr("prescale: string = '1.0'")
    .Attr("postscale: string = '1.0'")
    .Attr("context: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context, Kind::kAllreduce) {
    OP_REQUIRES_OK(context, ReadReduction(context, &call_));
    OP_REQUIRES_OK(context, ReadBucket(context, &call_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine) return;
    Request request = MakeRequest(context, context->num_inputs());
    auto keep = std::make_shared<std::vector<tf::Tensor>>();
    const auto arena = ArenaFor(*engine);
    std::vector<tf::Tensor*> outs(1);
    OP_REQUIRES_OK_ASYNC(context,
                         context->num_inputs() == 1
                             ? AllocateOrForward(context, arena.get(), 0, outs.data())
                             : AllocateGroup(context, arena.get(), &outs, &request.packed),
                         done);
    request.buffers.reserve(outs.size());
    keep->reserve(2 * outs.size());
    for (int i = 0; i < context->num_inputs(); ++i) {
      const tf::Tensor& out = *outs[static_cast<size_t>(i)];
      request.buffers.push_back({context->input(i).data(), out.data(), out.NumElements()});
      keep->push_back(context->input(i));
      keep->push_back(out);
    }
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfddlAllreduce").Device(tf::DEVICE_CPU), AllreduceKernel);
REGISTER_KERNEL_BUILDER(
    Name("TfddlAllreduce").Device(tf::DEVICE_GPU).TypeConstraint("T", TypesReducedOnGpu()), AllreduceKernel);

}  // namespace
}  // namespace tfddl
