#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// `splits`: the number of rows for each rank. With `even`, `splits` is ignored and all ranks get equally many
// rows. `received`: the number of rows of `y` from each rank.
REGISTER_OP("TfddlAlltoall")
    .Input("x: T")
    .Input("splits: Tsplits")
    .Output("y: T")
    .Output("received: Tsplits")
    .Attr(kTypeAttr)
    .Attr("Tsplits: {int32, int64}")
    .Attr("tensor_name: string")
    .Attr(kProcessSetAttr)
    .Attr("even: bool = false")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle splits;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &splits));
      tf::shape_inference::ShapeHandle y;
      TF_RETURN_IF_ERROR(WithUnknownRows(c, c->input(0), &y));
      c->set_output(0, y);
      c->set_output(1, c->Vector(tf::shape_inference::InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

std::string Describe(const std::vector<int64_t>& numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

// The reason why `splits` are wrong; empty if they are right.
std::string Objection(const std::vector<int64_t>& splits, int64_t rows, int size) {
  const std::string received =
      ". Received: splits " + Describe(splits) + " of " + std::to_string(rows) + " rows";
  if (splits.size() != static_cast<size_t>(size)) {
    return "splits must have one number for each of the " + std::to_string(size) +
           " ranks: give 0 to those that get no rows" + received;
  }
  int64_t left = rows;
  for (int64_t split : splits) {
    if (split < 0) return "splits must not be negative: give 0 to ranks that get no rows" + received;
    if (split > left)
      return "splits must add up to no more than the first dimension: make them smaller" + received;
    left -= split;
  }
  return "";
}

class AlltoallKernel : public CollectiveKernel {
 public:
  explicit AlltoallKernel(tf::OpKernelConstruction* context) : CollectiveKernel(context, Kind::kAlltoall) {
    OP_REQUIRES_OK(context, ReadSplits(context, &call_, &even_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const auto engine = RequireEngine(context, done);
    if (!engine || !RequireRows(context, 1, done)) return;
    const tf::Tensor& x = context->input(0);
    Request request = MakeRequest(context, 1);
    std::string objection;
    request.splits = Splits(context, engine->size(), &objection);
    OP_REQUIRES_ASYNC(context, objection.empty(),
                      MakeStatus(absl::StatusCode::kInvalidArgument, "'" + call_.name + "': " + objection),
                      done);
    request.buffers.push_back({x.data(), nullptr, x.NumElements(), x.dim_size(0), RowElements(x)});
    auto keep = std::make_shared<std::vector<tf::Tensor>>(std::vector<tf::Tensor>{x});
    request.allocate = [context, arena = ArenaFor(*engine), keep](const std::vector<int64_t>& rows,
                                                                  std::vector<void*>* out) {
      return Allocate(context, arena.get(), keep, rows, out);
    };
    Submit(engine, context, std::move(request), std::move(keep), std::move(done));
  }

 private:
  std::vector<int64_t> Splits(tf::OpKernelContext* context, int size, std::string* objection) const {
    const int64_t rows = context->input(0).dim_size(0);
    if (even_) {
      if (rows % size != 0) {
        *objection =
            "without splits the first dimension must be a multiple of "
            "the number of ranks: pad the rows, or pass splits. Received: " +
            std::to_string(rows) + " rows for " + std::to_string(size) + " ranks";
      }
      return std::vector<int64_t>(static_cast<size_t>(size), rows / size);
    }
    const tf::Tensor& given = context->input(1);
    std::vector<int64_t> splits(static_cast<size_t>(given.NumElements()));
    if (given.dtype() == tf::DT_INT32) {
      std::copy_n(given.flat<int32_t>().data(), splits.size(), splits.begin());
    } else {
      std::copy_n(given.flat<int64_t>().data(), splits.size(), splits.begin());
    }
    *objection = Objection(splits, rows, size);
    return splits;
  }

  static Status Allocate(tf::OpKernelContext* context, Arena* arena, const Tensors& keep,
                         const std::vector<int64_t>& rows, std::vector<void*>* out) {
    tf::Tensor* received = nullptr;
    const Status status = AllocationStatus(
        context->allocate_output(1, tf::TensorShape({static_cast<int64_t>(rows.size())}), &received));
    if (!status.ok()) return status;
    if (received->dtype() == tf::DT_INT32) {
      std::copy(rows.begin(), rows.end(), received->flat<int32_t>().data());
    } else {
      std::copy(rows.begin(), rows.end(), received->flat<int64_t>().data());
    }
    return AllocateRows(context, arena, keep, 0, std::accumulate(rows.begin(), rows.end(), int64_t{0}), out);
  }

  bool even_ = false;
};

REGISTER_KERNEL_BUILDER(Name("TfddlAlltoall").Device(tf::DEVICE_CPU), AlltoallKernel);
REGISTER_KERNEL_BUILDER(
    Name("TfddlAlltoall").Device(tf::DEVICE_GPU).HostMemory("splits").HostMemory("received"), AlltoallKernel);

}  // namespace
}  // namespace tfddl
