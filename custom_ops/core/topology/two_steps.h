// A reduction in two steps: among the ranks of each host, then among the hosts.
#pragma once

#include "core/arithmetic/reduce.h"
#include "core/topology/hosts.h"

namespace tfddl {

struct TwoSteps {
  Reduction on_host;
  Reduction across;
  // Whether partial results are accumulators (ReducePartly()), so that a FinishReduction() has to follow.
  bool accumulators;
};

// Partial results travel in the dtype of the values where this loses nothing: in integer sums, in Min and
// Max. Partial float16 and bfloat16 sums do so too, since their accumulators would double the bytes: each is
// rounded, after a division by a power of two which keeps it as small as the largest value. All others travel
// in the accumulator type.
TwoSteps InTwoSteps(const Reduction& reduction, const Hosts& hosts);

}  // namespace tfddl
