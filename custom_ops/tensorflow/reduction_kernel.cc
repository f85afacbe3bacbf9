#include "tensorflow/reduction_kernel.h"

#include <cstdlib>

#include "core/reduce.h"

namespace tfddl {

namespace tf = tensorflow;

namespace {

bool Takes(Kind kind, ReduceOp op, DataType dtype) {
  const bool scattered = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  return (kind != Kind::kReducescatter || scattered) && Supports(op, dtype);
}

}  // namespace

ReductionKernel::ReductionKernel(tf::OpKernelConstruction* context, Kind kind)
    : CollectiveKernel(context), kind_(kind) {
  int reduce_op = 0;
  OP_REQUIRES_OK(context, context->GetAttr("reduce_op", &reduce_op));
  OP_REQUIRES_OK(context, context->GetAttr("prescale", &prescale_));
  OP_REQUIRES_OK(context, context->GetAttr("postscale", &postscale_));
  OP_REQUIRES_OK(context, context->GetAttr("context", &context_));
  op_ = static_cast<ReduceOp>(reduce_op);
  tf::DataType dtype;
  OP_REQUIRES_OK(context, context->GetAttr("T", &dtype));
  OP_REQUIRES(context, Takes(kind, op_, ToDataType(dtype)),
              MakeStatus(absl::StatusCode::kInvalidArgument,
                         std::string(NameOf(kind)) +
                             " does not support this reduce_op for this dtype. Received: reduce_op=" +
                             std::to_string(reduce_op) + ", " + NameOf(ToDataType(dtype))));
}

Request ReductionKernel::MakeReduction(tf::OpKernelContext* context) const {
  Request request = MakeRequest(context, kind_);
  request.op = op_;
  request.prescale = std::strtod(prescale_.c_str(), nullptr);
  request.postscale = std::strtod(postscale_.c_str(), nullptr);
  return request;
}

std::vector<std::string> ReductionKernel::SignatureHead(const std::vector<std::string>& more) const {
  std::vector<std::string> fields = {NameOf(kind_), NameOf(op_),
                                     "prescale " + prescale_ + ", postscale " + postscale_};
  fields.insert(fields.end(), more.begin(), more.end());
  if (!context_.empty()) fields.push_back(context_);
  return fields;
}

}  // namespace tfddl
