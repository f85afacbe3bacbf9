// Allreduce of ranks that reach each other's memory: nothing goes through messages but word of what is ready.
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

// Whether those that take part in `transport` can do it; the same on all of them.
bool ReachEachOther(const Transport& transport);

// Each rank puts the slices that others own from its input into its result, where their owner reads them, and
// then writes the reduced slice over them on all ranks. Where a rank's result lies in no arena, all hear of
// it with the first message, and run what `otherwise` makes of the same lane.
std::unique_ptr<Collective> MakeSharedAllreduce(Lane lane, const Reduction& reduction, Range range,
                                                std::function<std::unique_ptr<Collective>()> otherwise);

}  // namespace tfddl
