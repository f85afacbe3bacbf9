// A small allreduce among many members.
#pragma once

#include <memory>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"
#include "core/collectives/shared_allreduce.h"

namespace tfddl {

// Among more members, a message to each of them costs more than the log2 of them one after the other, in the
// model of Hockney (1994): with 5 us for each message and 25 us of latency, 175 and 180 us for 32 members.
constexpr int kMostDirectMembers = 32;

// Up to this size a rank rather receives the data of all ranks than two small messages from each: a message
// takes as long as 4 KiB on a link of 10 Gbit/s.
constexpr size_t kGatheredBytes = size_t{8} << 10;

// Each rank receives the data of all ranks in log2(size) rounds of one message, then reduces everything
// itself, in the order of the ranks (the allgather of Bruck et al. 1997, IEEE TPDS 8).
std::unique_ptr<Collective> MakeGatheredAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                                  Range range);

}  // namespace tfddl
