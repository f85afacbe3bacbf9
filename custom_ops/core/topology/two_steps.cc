#include "core/topology/two_steps.h"

namespace tfddl {
namespace {

bool IsHalf(DataType dtype) { return dtype == DataType::kFloat16 || dtype == DataType::kBFloat16; }

// Whether a partial result has the same value in the dtype as in an accumulator, or one that leads to the
// same result. Sums and products of integers wrap in both types.
bool LosesNothing(const Reduction& reduction) {
  if (reduction.prescale != 1.0 || reduction.postscale != 1.0) return false;
  if (reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax) return true;
  const bool wraps = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kProduct;
  return wraps && !IsHalf(reduction.dtype) && reduction.dtype != DataType::kBool;
}

}  // namespace

TwoSteps InTwoSteps(const Reduction& reduction, const Hosts& hosts) {
  TwoSteps steps{reduction, reduction, false};
  steps.on_host.size = static_cast<int>(hosts.local().size());
  steps.across.size = hosts.hosts();
  const bool adds = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  if (IsHalf(reduction.dtype) && adds) {
    double scale = 1.0;
    while (scale * hosts.largest() > 1.0) scale /= 2;
    steps.on_host.op = ReduceOp::kSum;
    // The factors wait for the end: between them, a sum may not fit into 16 bits.
    steps.on_host.prescale = scale;
    steps.on_host.postscale = steps.across.prescale = 1.0;
    steps.across.postscale *= reduction.prescale / scale;
  } else if (AccumulatorType(reduction.dtype) != reduction.dtype && LosesNothing(reduction)) {
    return steps;
  } else {
    steps.accumulators = true;
    steps.across.dtype = AccumulatorType(reduction.dtype);
    if (reduction.op == ReduceOp::kAverage) steps.across.op = ReduceOp::kSum;
    steps.across.prescale = steps.across.postscale = 1.0;
  }
  return steps;
}

}  // namespace tfddl
