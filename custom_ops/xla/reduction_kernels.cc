#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "xla/emit.h"
#include "xla/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

class AllreduceKernel : public CallKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* context) : CallKernel(context, Kind::kAllreduce) {
    OP_REQUIRES_OK(context, ReadReduction(context, &call_));
    OP_REQUIRES_OK(context, ReadBucket(context, &call_));
  }
};

// All buckets of a gradient computation. Each bucket starts as soon as its own inputs exist; the finish calls
// wait for the last start.
class AllreduceBucketsKernel : public tf::XlaOpKernel {
 public:
  explicit AllreduceBucketsKernel(tf::OpKernelConstruction* context)
      : XlaOpKernel(context), gpu_(OnGpu(context)) {
    Call call;
    std::vector<tf::DataType> types;
    std::vector<int> members;
    OP_REQUIRES_OK(context, ReadCall(context, &call));
    OP_REQUIRES_OK(context, context->GetAttr("Ts", &types));
    OP_REQUIRES_OK(context, context->GetAttr("members", &members));
    OP_REQUIRES(context,
                std::accumulate(members.begin(), members.end(), size_t{0}) == types.size() &&
                    std::all_of(members.begin(), members.end(), [](int count) { return count > 0; }),
                MakeStatus(absl::StatusCode::kInvalidArgument,
                           "internal error: members must be positive and add up to the number of tensors"));
    call.buckets = static_cast<int>(members.size());
    size_t first = 0;
    for (const int count : members) {
      call.dtype = ToDataType(types[first]);
      OP_REQUIRES_OK(context, ReadReduction(context, &call));
      calls_.push_back({call, count});
      ++call.bucket;
      first += static_cast<size_t>(count);
    }
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    std::vector<Emission> emissions;
    int first = 0;
    for (const auto& [call, count] : calls_) {
      Emission& emission = emissions.emplace_back();
      emission.call = call;
      emission.type = context->input_xla_type(first);
      OP_REQUIRES_OK(context, SetRankAndSize(&emission.call));
      OP_REQUIRES_OK(context, AddInputs(context, count, &emission.call, first));
      for (int i = 0; i < count; ++i) emission.inputs.push_back(context->Input(first++));
    }
    OP_REQUIRES_OK(context, Emit(context, gpu_, &emissions));
    int output = 0;
    for (const Emission& emission : emissions) {
      for (const auto& result : emission.results) context->SetOutput(output++, result);
    }
  }

 private:
  std::vector<std::pair<Call, int>> calls_;  // and the number of inputs of each
  const bool gpu_;
};

class ReducescatterKernel : public CallKernel {
 public:
  explicit ReducescatterKernel(tf::OpKernelConstruction* context)
      : CallKernel(context, Kind::kReducescatter) {
    OP_REQUIRES_OK(context, ReadReduction(context, &call_));
  }

 protected:
  absl::Status Describe(tf::XlaOpKernelContext* context, Call* call) override {
    return AddRows(context, context->num_inputs(), call);
  }
};

TFDDL_REGISTER_XLA_KERNEL("TfddlAllreduce", AllreduceKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlAllreduceBuckets", AllreduceBucketsKernel);
TFDDL_REGISTER_XLA_KERNEL("TfddlReducescatter", ReducescatterKernel);

}  // namespace
}  // namespace tfddl
