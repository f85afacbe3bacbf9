#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <utility>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// The inputs of an op form a group. `rows` has shape [N, ranks]: the first dimension of each input on each
// rank; the gradient finds its own part by it. `divisor`: of an average over the ranks, smaller while ranks
// have joined. `context`: further fields of the signature.
REGISTER_OP("TfddlAllgather")
    .Input("x: N * T")
    .Output("y: N * T")
    .Output("rows: int64")
    .Output("divisor: int64")
    .Attr(kTypeAttr)
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .Attr(kProcessSetAttr)
    .Attr("context: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      TF_RETURN_IF_ERROR(UnknownRows(c));
      c->set_output(c->num_inputs(),
                    c->Matrix(c->num_inputs(), tf::shape_inference::InferenceContext::kUnknownDim));
      c->set_output(c->num_inputs() + 1, c->Scalar());
      return absl::OkStatus();
    });

// Larger outputs are not allocated in advance (Request::expected): the gain would be small, and they would
// waste memory if the rows differ.
constexpr int64_t kExpectedBytes = int64_t{4} << 20;

class AllgatherKernel : public CollectiveKernel {
 public:
  explicit AllgatherKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context, Kind::kAllgather) {
    OP_REQUIRES_OK(context, context->GetAttr("context", &call_.context));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine || !RequireRows(context, context->num_inputs(), done)) return;
    Request request = MakeRequest(context, context->num_inputs());
    auto keep = std::make_shared<std::vector<tf::Tensor>>();
    for (int i = 0; i < context->num_inputs(); ++i) {
      const tf::Tensor& x = context->input(i);
      request.buffers.push_back({x.data(), nullptr, x.NumElements(), x.dim_size(0), RowElements(x)});
      keep->push_back(x);
    }
    tf::Tensor* divisor = nullptr;
    OP_REQUIRES_OK_ASYNC(
        context, context->allocate_output(context->num_inputs() + 1, tf::TensorShape({}), &divisor), done);
    request.divisor = divisor->scalar<int64_t>().data();
    keep->push_back(*divisor);
    const auto arena = ArenaFor(*engine);
    if (on_host() && *as_expected_ && OutputBytes(context, engine->size()) <= kExpectedBytes) {
      std::vector<int64_t> rows;
      for (const Buffer& buffer : request.buffers) {
        rows.insert(rows.end(), static_cast<size_t>(engine->size()), buffer.rows);
      }
      if (!Allocate(context, arena.get(), keep, rows, &request.expected).ok()) request.expected.clear();
    }
    const bool was_expected = !request.expected.empty();
    request.allocate = [context, arena, keep, was_expected, as_expected = as_expected_](
                           const std::vector<int64_t>& rows, std::vector<void*>* out) {
      if (was_expected) *as_expected = false;
      for (int i = 0; i <= context->num_inputs(); ++i) delete context->release_output(i).tensor;
      return Allocate(context, arena.get(), keep, rows, out);
    };
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }

 private:
  // The size of all outputs if all ranks bring as many rows as this one.
  static int64_t OutputBytes(tf::OpKernelContext* context, int size) {
    int64_t bytes = 0;
    for (int i = 0; i < context->num_inputs(); ++i) bytes += context->input(i).TotalBytes();
    return bytes * size;
  }

  static Status Allocate(tf::OpKernelContext* context, Arena* arena, const Tensors& keep,
                         const std::vector<int64_t>& rows, std::vector<void*>* out) {
    const int inputs = context->num_inputs();
    const int64_t size = static_cast<int64_t>(rows.size()) / inputs;
    tf::Tensor* table = nullptr;
    const Status status =
        AllocationStatus(context->allocate_output(inputs, tf::TensorShape({inputs, size}), &table));
    if (!status.ok()) return status;
    std::copy(rows.begin(), rows.end(), table->flat<int64_t>().data());
    for (int i = 0; i < inputs; ++i) {
      const auto first = rows.begin() + i * size;
      const Status allocated =
          AllocateRows(context, arena, keep, i, std::accumulate(first, first + size, int64_t{0}), out);
      if (!allocated.ok()) return allocated;
    }
    return Status();
  }

  // Whether all ranks have brought equally many rows so far. Shared, because a call may outlive its kernel.
  const std::shared_ptr<std::atomic<bool>> as_expected_ = std::make_shared<std::atomic<bool>>(true);
};

REGISTER_KERNEL_BUILDER(Name("TfddlAllgather").Device(tf::DEVICE_CPU), AllgatherKernel);
REGISTER_KERNEL_BUILDER(
    Name("TfddlAllgather").Device(tf::DEVICE_GPU).HostMemory("rows").HostMemory("divisor"), AllgatherKernel);

}  // namespace
}  // namespace tfddl
