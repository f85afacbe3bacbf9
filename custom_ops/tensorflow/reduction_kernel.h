// What the kernels that reduce share: their attributes, a request's operation, and the head of its signature.
#pragma once

#include <string>
#include <vector>

#include "tensorflow/kernel.h"

namespace tfddl {

// The factors are strings, because attributes know no double and a float32 factor would cost a float64
// tensor half of its digits. Ranks compare them as written. `context` is what else ranks must agree on.
class ReductionKernel : public CollectiveKernel {
 public:
  // Refuses a reduce_op that does not take the op's type.
  ReductionKernel(tensorflow::OpKernelConstruction* context, Kind kind);

 protected:
  // A request with the operation and the factors.
  Request MakeReduction(tensorflow::OpKernelContext* context) const;

  // What the signature begins with. `more` comes before the context.
  std::vector<std::string> SignatureHead(const std::vector<std::string>& more = {}) const;

 private:
  const Kind kind_;
  ReduceOp op_ = ReduceOp::kSum;
  std::string prescale_;
  std::string postscale_;
  std::string context_;
};

}  // namespace tfddl
