#include "xla/kernel.h"

#include "tensorflow/core/framework/resource_mgr.h"
#include "xla/api.h"
#include "xla/compat.h"
#include "xla/shape_util.h"
#include TFDDL_XLA_BUILDER

namespace tfddl {
namespace {

namespace tf = tensorflow;

constexpr char kTokenName[] = "tfddl_token";

// The token of the last call in a computation. XLA runs calls that do not depend on each other in an order of
// its own; each takes the token of the one before, so that all ranks come to them in the order of the
// program. It lives as long as the compilation of its computation: the bodies of loops and conds have their
// own.
class Token : public tf::ResourceBase {
 public:
  explicit Token(xla::XlaOp first) : last(first) {}
  std::string DebugString() const override { return kTokenName; }
  xla::XlaOp last;
};

absl::Status FindToken(tf::XlaOpKernelContext* context, Token** token) {
  tf::OpKernelContext* op = context->op_kernel_context();
  xla::XlaBuilder* builder = context->builder();  // a look-up too, which may not be made inside of this one
  return op->step_container()->LookupOrCreate<Token>(
      op->resource_manager(), kTokenName, token, [builder](Token** created) {
        *created = new Token(xla::ConstantR0<int32_t>(builder, 0));
        return absl::OkStatus();
      });
}

absl::Status FindPlace(Call* call) {
  const auto& engine = EngineFunctions();
  int code = engine.place("rank", call->process_set, &call->rank);
  if (code == 0) code = engine.place("size", call->process_set, &call->size);
  if (code == 0) return absl::OkStatus();
  const std::string reason = engine.last_error();
  return static_cast<Code>(code) == Code::kInvalidArgument ? absl::InvalidArgumentError(reason)
                                                           : absl::FailedPreconditionError(reason);
}

std::string TargetText(const Call& call, size_t results) {
  if (!TFDDL_XLA_FFI) return std::to_string(results) + ":" + call.Encode();
  return std::string("{") + kTargetAttribute + " = \"" + call.Encode() + "\"}";
}

// The call, behind the last one, with tensors row by row as TensorFlow has them. Returns its results; the
// token is one more.
absl::StatusOr<xla::XlaOp> Emit(tf::XlaOpKernelContext* context, const Call& call, xla::PrimitiveType type,
                                const std::vector<Shape>& results) {
  Token* token = nullptr;
  TF_RETURN_IF_ERROR(FindToken(context, &token));
  tf::core::ScopedUnref unref(token);
  std::vector<xla::XlaOp> inputs;
  std::vector<xla::Shape> from, to;
  for (const auto& shape : call.shapes) {
    inputs.push_back(context->Input(static_cast<int>(inputs.size())));
    from.push_back(xla::ShapeUtil::MakeShapeWithDescendingLayout(type, shape));
  }
  for (const auto& shape : results) {
    to.push_back(xla::ShapeUtil::MakeShapeWithDescendingLayout(type, shape));
  }
  inputs.push_back(token->last);
  from.push_back(xla::ShapeUtil::MakeShape(xla::S32, {}));
  to.push_back(from.back());
  const auto version = TFDDL_XLA_FFI ? xla::API_VERSION_TYPED_FFI : xla::API_VERSION_STATUS_RETURNING_UNIFIED;
  const xla::XlaOp tuple = xla::CustomCallWithLayout(
      context->builder(), kTarget, inputs, xla::ShapeUtil::MakeTupleShape(to), from,
      TargetText(call, to.size()), /*has_side_effect=*/true, {}, nullptr, xla::SCHEDULE_NONE, version);
  token->last = xla::GetTupleElement(tuple, static_cast<int64_t>(results.size()));
  return tuple;
}

}  // namespace

void CallKernel::Compile(tf::XlaOpKernelContext* context) {
  Call call = call_;
  if (call.place.empty()) OP_REQUIRES_OK(context, FindPlace(&call));
  OP_REQUIRES_OK(context, Describe(context, &call));
  const auto type = call.shapes.empty() ? xla::S32 : context->input_xla_type(0);
  const auto results = call.OutputShapes();
  const auto tuple = Emit(context, call, type, results);
  OP_REQUIRES_OK(context, tuple.status());
  for (size_t i = 0; i < results.size(); ++i) {
    context->SetOutput(static_cast<int>(i), xla::GetTupleElement(*tuple, static_cast<int64_t>(i)));
  }
  SetConstants(context, call);
}

absl::Status CallKernel::Describe(tf::XlaOpKernelContext* context, Call* call) {
  return AddInputs(context, context->num_inputs(), call);
}

absl::Status AddInputs(tf::XlaOpKernelContext* context, int count, Call* call) {
  for (int i = 0; i < count; ++i) {
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
    return absl::InvalidArgumentError("'" + call->name +
                                      "' needs tensors of rank 1 or more. Received: a scalar");
  }
  return absl::OkStatus();
}

}  // namespace tfddl
