// Allreduce over several hosts, with several ranks on at least one of them.
#pragma once

#include <functional>
#include <memory>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"
#include "core/collectives/shared_allreduce.h"
#include "core/topology/hosts.h"

namespace tfddl {

using ReduceRangeBy = std::function<std::unique_ptr<Collective>(Lane, ScratchPool*, const Reduction&, Range)>;

// 1. The ranks of each host reduce among themselves; each owner gets one slice.
// 2. The owners of the same slice on all hosts reduce it (`across`).
// 3. Each owner sends its slice of the result to the ranks of its host.
//
// With H hosts and n bytes, each host sends and receives 2 n (H - 1) / H bytes, whatever its number of ranks;
// (H - 1) n if an owner receives at most 64 KB.
// Partial results travel as two_steps.h says.
std::unique_ptr<Collective> MakeHierarchicalAllreduce(Lane lane, ScratchPool* pool,
                                                      const Reduction& reduction, Range range,
                                                      const Hosts& hosts, ReduceRangeBy across);

}  // namespace tfddl
