#include "xla/emit.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/resource_mgr.h"
#include "xla/api.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

constexpr char kTokenName[] = "tfddl_token";

// The token of the last call in a computation. XLA may reorder independent calls; each call takes the token
// of the previous one, so all ranks run them in the order of the program. Each computation has its own token:
// the bodies of loops and conds too. On the CPU, the value of the token is the number of the run, which the
// first call sets.
class Token : public tf::ResourceBase {
 public:
  explicit Token(xla::XlaOp first) : last(first) {}
  std::string DebugString() const override { return kTokenName; }
  xla::XlaOp last;

  // The tokens of the finishes of the last call, by process set and name. The engine admits one call of a
  // name at a time, and `last` alone does not order a start after the finishes before it.
  std::map<std::pair<int, std::string>, std::vector<xla::XlaOp>> finishes;
};

absl::Status FindToken(tf::XlaOpKernelContext* context, Token** token) {
  tf::OpKernelContext* op = context->op_kernel_context();
  xla::XlaBuilder* builder = context->builder();  // a look-up too; look-ups must not be nested
  return op->step_container()->LookupOrCreate<Token>(
      op->resource_manager(), kTokenName, token, [builder](Token** created) {
        *created = new Token(xla::ConstantR0<int32_t>(builder, 0));
        return absl::OkStatus();
      });
}

// The results that share the memory of an operand.
using Aliases = std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>;

Aliases OneToOne(size_t count) {
  Aliases aliases;
  for (size_t i = 0; i < count; ++i) aliases.push_back({{static_cast<int64_t>(i)}, {i, {}}});
  return aliases;
}

// Shapes with row-major layout, as in TensorFlow.
std::vector<xla::Shape> ShapesOf(xla::PrimitiveType type, const std::vector<Shape>& shapes) {
  std::vector<xla::Shape> result;
  for (const auto& shape : shapes) {
    result.push_back(xla::ShapeUtil::MakeShapeWithDescendingLayout(type, shape));
  }
  return result;
}

std::string TextOf(const Call& call, size_t inputs, size_t results) {
  if (TFDDL_XLA_FFI) return std::string("{") + kTargetAttribute + " = \"" + call.Encode() + "\"}";
  return std::to_string(inputs) + ":" + std::to_string(results) + ":" + call.Encode();
}

// `from` and `to`: the shapes of operands and results, without tokens. The call runs after the calls that
// made `tokens`; the last one has the number of the run. Returns the results; the last one is the new token.
std::vector<xla::XlaOp> CustomCall(const char* target, const Call& call, std::vector<xla::XlaOp> operands,
                                   std::vector<xla::Shape> from, std::vector<xla::Shape> to,
                                   const std::vector<xla::XlaOp>& tokens, const Aliases& aliases) {
  operands.insert(operands.end(), tokens.begin(), tokens.end());
  to.push_back(xla::ShapeUtil::MakeShape(xla::S32, {}));
  from.insert(from.end(), tokens.size(), to.back());
  const auto version = TFDDL_XLA_FFI ? xla::API_VERSION_TYPED_FFI : xla::API_VERSION_STATUS_RETURNING_UNIFIED;
  const xla::XlaOp tuple =
      xla::CustomCallWithLayout(tokens.back().builder(), target, operands, xla::ShapeUtil::MakeTupleShape(to),
                                from, TextOf(call, from.size(), to.size()), /*has_side_effect=*/true, aliases,
                                nullptr, xla::SCHEDULE_NONE, version);
  std::vector<xla::XlaOp> results;
  for (size_t i = 0; i < to.size(); ++i) {
    results.push_back(xla::GetTupleElement(tuple, static_cast<int64_t>(i)));
  }
  return results;
}

bool InPlace(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBroadcast; }

void EmitCall(Emission* emission, std::vector<xla::XlaOp>* tokens) {
  const Call& call = emission->call;
  emission->results = CustomCall(kCallTarget, call, emission->inputs, ShapesOf(emission->type, call.shapes),
                                 ShapesOf(emission->type, call.OutputShapes()), *tokens, {});
  *tokens = {emission->results.back()};
  emission->results.pop_back();
}

// A start has no results on the CPU. On a GPU its results are the memory of the outputs, which may be the
// memory of the inputs.
void EmitStart(bool gpu, Emission* emission, std::vector<xla::XlaOp>* tokens) {
  const Call& call = emission->call;
  const auto from = ShapesOf(emission->type, call.shapes);
  const auto to = gpu ? ShapesOf(emission->type, call.OutputShapes()) : std::vector<xla::Shape>();
  const bool aliased = gpu && call.rank_query.empty() && InPlace(call.kind);
  emission->results =
      CustomCall(kStartTarget, call, emission->inputs, from, to, *tokens, OneToOne(aliased ? to.size() : 0));
  *tokens = {emission->results.back()};
  emission->results.pop_back();
}

// The operands keep the memory until the finish. `token` orders the finish after all starts; else XLA would
// run it right after its own start.
void EmitFinish(bool gpu, Emission* emission, xla::XlaOp token, std::vector<xla::XlaOp>* finishes) {
  const Call& call = emission->call;
  if (!call.rank_query.empty()) return;
  const auto to = ShapesOf(emission->type, call.OutputShapes());
  std::vector<xla::XlaOp> operands = emission->results;
  auto from = gpu ? to : std::vector<xla::Shape>();
  if (gpu && !InPlace(call.kind)) {
    const auto inputs = ShapesOf(emission->type, call.shapes);
    operands.insert(operands.end(), emission->inputs.begin(), emission->inputs.end());
    from.insert(from.end(), inputs.begin(), inputs.end());
  }
  emission->results =
      CustomCall(kFinishTarget, call, operands, from, to, {token}, OneToOne(gpu ? to.size() : 0));
  finishes->push_back(emission->results.back());
  emission->results.pop_back();
}

}  // namespace

absl::Status Emit(tf::XlaOpKernelContext* context, bool gpu, std::vector<Emission>* emissions) {
  Token* token = nullptr;
  TF_RETURN_IF_ERROR(FindToken(context, &token));
  tf::core::ScopedUnref unref(token);
  const Call& call = emissions->front().call;  // the others have the same name
  auto& finishes = token->finishes[{call.process_set, call.name}];
  std::vector<xla::XlaOp> tokens = std::exchange(finishes, {});
  tokens.push_back(token->last);
  if (!gpu && emissions->size() == 1) {
    EmitCall(&emissions->front(), &tokens);
  } else {
    for (Emission& emission : *emissions) EmitStart(gpu, &emission, &tokens);
    for (Emission& emission : *emissions) EmitFinish(gpu, &emission, tokens.back(), &finishes);
  }
  token->last = tokens.back();
  return context->builder()->GetCurrentStatus();
}

}  // namespace tfddl
