// Allreduce of ranks on several hosts, of which some share one.
#pragma once

#include <functional>
#include <memory>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"
#include "core/collectives/hosts.h"
#include "core/collectives/shared_allreduce.h"

namespace tfddl {

using ReduceRangeBy = std::function<std::unique_ptr<Collective>(Lane, ScratchPool*, const Reduction&, Range)>;

// The ranks of a host reduce slices among themselves, each owner of one reduces it with its owners on the
// other hosts by `across`, and tells its host the result. So a host of n bytes and H hosts send and receive
// 2 n (H - 1) / H; with slices for all ranks of all hosts it would be that times the ranks of a host. Partial
// results travel in the type in which reductions accumulate, and are rounded once.
std::unique_ptr<Collective> MakeHierarchicalAllreduce(Lane lane, ScratchPool* pool,
                                                      const Reduction& reduction, Range range,
                                                      const Hosts& hosts, ReduceRangeBy across);

}  // namespace tfddl
