#include <algorithm>

#include "xla/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

class BroadcastKernel : public CallKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* context) : CallKernel(context, Kind::kBroadcast) {
    OP_REQUIRES_OK(context, context->GetAttr("root_rank", &call_.root));
  }
};

// A compiled program has fixed shapes, so all ranks have to bring equally many rows. The program checks it
// when it runs (core/compiled/run_call.cc).
class AllgatherKernel : public CallKernel {
 public:
  explicit AllgatherKernel(tf::OpKernelConstruction* context) : CallKernel(context, Kind::kAllgather) {
    OP_REQUIRES_OK(context, context->GetAttr("context", &call_.context));
  }

 protected:
  absl::Status Describe(tf::XlaOpKernelContext* context, Call* call) override {
    return AddRows(context, context->num_inputs(), call);
  }

  void SetConstants(tf::XlaOpKernelContext* context, const Call& call) override {
    const auto inputs = static_cast<int64_t>(call.shapes.size());
    tf::Tensor rows(tf::DT_INT64, tf::TensorShape({inputs, call.size}));
    for (int64_t i = 0; i < inputs; ++i) {
      const int64_t mine = call.shapes[static_cast<size_t>(i)][0];
      for (int rank = 0; rank < call.size; ++rank) rows.matrix<int64_t>()(i, rank) = mine;
    }
    context->SetConstantOutput(static_cast<int>(inputs), rows);
    tf::Tensor divisor(tf::DT_INT64, tf::TensorShape({}));
    divisor.scalar<int64_t>()() = call.size;  // all ranks bring rows, so none has joined
    context->SetConstantOutput(static_cast<int>(inputs) + 1, divisor);
  }
};

// For the same reason, every rank has to send equally many rows to each rank.
class AlltoallKernel : public CallKernel {
 public:
  explicit AlltoallKernel(tf::OpKernelConstruction* context) : CallKernel(context, Kind::kAlltoall) {
    OP_REQUIRES_OK(context, ReadSplits(context, &call_, &even_));
  }

 protected:
  absl::Status Describe(tf::XlaOpKernelContext* context, Call* call) override {
    TF_RETURN_IF_ERROR(AddRows(context, 1, call));
    const int64_t rows = call->shapes[0][0];
    std::vector<int64_t> splits;
    const bool known = even_ || context->ConstantInputAsIntVector(1, &splits).ok();
    if (known && !even_ && static_cast<int64_t>(splits.size()) != call->size) {
      return absl::InvalidArgumentError(
          "'" + call->name + "': splits must have one number for each of the " + std::to_string(call->size) +
          " ranks: give 0 to those that get no rows. Received: " + std::to_string(splits.size()) +
          " numbers");
    }
    const bool equal =
        std::all_of(splits.begin(), splits.end(), [&](int64_t split) { return split * call->size == rows; });
    if (known && equal && rows % call->size == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "'" + call->name +
        "': alltoall inside a function compiled by XLA (jit_compile=True) sends equally many rows to each "
        "rank, because its shapes are fixed: use jit_compile=False for others. Received: " +
        std::to_string(rows) + " rows for " + std::to_string(call->size) + " ranks" +
        (even_ ? "" : ", and splits that are not constant or not all the same"));
  }

  void SetConstants(tf::XlaOpKernelContext* context, const Call& call) override {
    const int64_t each = call.shapes[0][0] / call.size;
    tf::Tensor received(context->input_type(1), tf::TensorShape({call.size}));
    if (received.dtype() == tf::DT_INT64) {
      received.flat<int64_t>().setConstant(each);
    } else {
      received.flat<int32_t>().setConstant(static_cast<int32_t>(each));
    }
    context->SetConstantOutput(1, received);
  }

 private:
  bool even_ = false;
};

class BarrierKernel : public CallKernel {
 public:
  explicit BarrierKernel(tf::OpKernelConstruction* context) : CallKernel(context, Kind::kBarrier) {}
};

// Asked when the program runs, so that no program keeps the number of the job in which it was compiled.
class RankQueryKernel : public CallKernel {
 public:
  explicit RankQueryKernel(tf::OpKernelConstruction* context) : CallKernel(context, Kind::kBarrier) {
    OP_REQUIRES_OK(context, context->GetAttr("query", &call_.rank_query));
  }
};

TFDDL_REGISTER_XLA_KERNEL("TfddlBroadcast", BroadcastKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlAllgather", AllgatherKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlAlltoall", AlltoallKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlBarrier", BarrierKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlRankQuery", RankQueryKernel);

}  // namespace
}  // namespace tfddl
