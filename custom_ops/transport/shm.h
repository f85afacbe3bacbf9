// Transport between the processes of one host, through memory that they share.
//
// Each member owns a segment with one channel to every other member. Short messages travel inside the
// ring. A long one travels through the slots, once its receiver has said that memory stands ready. One that
// fits a slot need not wait for that while less than a quarter of the slots is filled unasked, and views
// hold at most half of them. The rest is only ever taken for bytes that somebody waits for, so slots cannot
// run out for good, whatever the order in which the members post their transfers. Rings are emptied
// whenever a member calls in, so a short message does not wait behind long ones.
#pragma once

#include <memory>
#include <vector>

#include "transport/arena.h"
#include "transport/shm_channel.h"
#include "transport/transport.h"

namespace tfddl {

using ShmSegment = std::shared_ptr<char>;

// Bytes of one member's segment in a group of `size`.
size_t ShmSegmentBytes(const ShmGeometry& geometry, int size);

// The arena of this member, and the memory of all members' arenas, by rank. None where they could not be
// made.
struct ShmArenas {
  std::shared_ptr<Arena> mine;
  std::vector<ShmSegment> all;
};

// `segments` holds those of all members, by rank: zeroed before anybody's transport is made.
std::unique_ptr<Transport> MakeShmTransport(int rank, std::vector<ShmSegment> segments,
                                            const ShmGeometry& geometry, ShmArenas arenas = {});

}  // namespace tfddl
