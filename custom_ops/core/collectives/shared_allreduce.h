// Allreduce between ranks that have mapped each other's arenas: messages carry notifications only.
#pragma once

#include <functional>
#include <memory>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"

namespace tfddl {

// One contiguous range of elements to reduce.
struct Range {
  const char* in;
  char* out;
  int64_t count;
};

// Whether all members of `transport` have mapped each other's arenas. The same on all members.
bool ReachEachOther(const Transport& transport);

// Each rank copies its input to its result, except for its own slice (staging). The owner of a slice reads it
// from all results, reduces it and writes the reduced slice to all results. If the result of any rank lies
// outside of its arena, the first notification says so, and all ranks run the collective that `otherwise`
// returns for the same lane.
std::unique_ptr<Collective> MakeSharedAllreduce(Lane lane, const Reduction& reduction, Range range,
                                                std::function<std::unique_ptr<Collective>()> otherwise);

}  // namespace tfddl
