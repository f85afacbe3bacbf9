// A reduce-scatter over several hosts, with several ranks on at least one of them.
#pragma once

#include <memory>
#include <vector>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"
#include "core/topology/hosts.h"

namespace tfddl {

// Rank r owns the bytes from bounds[r] to bounds[r + 1] of `in`; the reduced slice of this rank goes to
// `out`, which may be its own slice of `in`.
//
// 1. The ranks of each host reduce among themselves. Each owner gets the slices of one column: those of the
//    owners at its place on all hosts, and of the ranks that own nothing.
// 2. The owners of a column exchange their partial results; each gets the slices of its host.
// 3. Owners send the slices of others to them, on a host with more ranks than the smallest one.
//
// A host that owns the part p of n bytes sends n - p bytes and receives (H - 1) p bytes, whatever its number
// of ranks.
std::unique_ptr<Collective> MakeHierarchicalSlices(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                                   const char* in, std::vector<size_t> bounds, char* out,
                                                   const Hosts& hosts);

}  // namespace tfddl
