#include "xla/kernel.h"

#include "xla/api.h"
#include "xla/emit.h"

namespace tfddl {

namespace tf = tensorflow;

absl::Status SetRankAndSize(Call* call) {
  const auto& engine = EngineFunctions();
  int code = engine.rank_query("rank", call->name.c_str(), call->process_set, &call->rank);
  if (code == 0) code = engine.rank_query("size", call->name.c_str(), call->process_set, &call->size);
  if (code == 0) return absl::OkStatus();
  const std::string reason = engine.last_error();
  return static_cast<Code>(code) == Code::kInvalidArgument ? absl::InvalidArgumentError(reason)
                                                           : absl::FailedPreconditionError(reason);
}

bool OnGpu(const tf::OpKernelConstruction* context) {
  return context->device_type().type_string() == kGpuDevice;
}

void CallKernel::Compile(tf::XlaOpKernelContext* context) {
  std::vector<Emission> emissions(1);
  Emission& emission = emissions.front();
  emission.call = call_;
  if (call_.rank_query.empty()) OP_REQUIRES_OK(context, SetRankAndSize(&emission.call));
  OP_REQUIRES_OK(context, Describe(context, &emission.call));
  if (!emission.call.shapes.empty()) emission.type = context->input_xla_type(0);
  for (size_t i = 0; i < emission.call.shapes.size(); ++i) {
    emission.inputs.push_back(context->Input(static_cast<int>(i)));
  }
  OP_REQUIRES_OK(context, Emit(context, gpu_, &emissions));
  for (size_t i = 0; i < emission.results.size(); ++i) {
    context->SetOutput(static_cast<int>(i), emission.results[i]);
  }
  SetConstants(context, emission.call);
}

absl::Status CallKernel::Describe(tf::XlaOpKernelContext* context, Call* call) {
  return AddInputs(context, context->num_inputs(), call);
}

absl::Status AddInputs(tf::XlaOpKernelContext* context, int count, Call* call, int first) {
  for (int i = first; i < first + count; ++i) {
    const auto shape = context->InputXlaShape(i);
    TF_RETURN_IF_ERROR(shape.status());
    if (!shape->is_static()) {
      return absl::InvalidArgumentError("'" + call->name +
                                        "': a collective inside a function compiled by XLA "
                                        "(jit_compile=True) needs tensors of fixed shape: "
                                        "use jit_compile=False where it depends on values, as after "
                                        "tf.boolean_mask or tf.where. Received: " +
                                        shape->ToString());
    }
    call->shapes.emplace_back(shape->dimensions().begin(), shape->dimensions().end());
  }
  return absl::OkStatus();
}

absl::Status AddRows(tf::XlaOpKernelContext* context, int count, Call* call) {
  TF_RETURN_IF_ERROR(AddInputs(context, count, call));
  for (const auto& shape : call->shapes) {
    if (!shape.empty()) continue;
    return absl::InvalidArgumentError(
        "'" + call->name +
        "' needs tensors with at least one dimension: make one with tf.reshape(x, [1]). Received: a scalar");
  }
  return absl::OkStatus();
}

}  // namespace tfddl
