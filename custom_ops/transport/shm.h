// The transport between the processes of one host, through shared memory.
//
// Each member owns a segment with one channel to every other member. A channel has a ring of records and a
// pool of slots. Short messages travel in the ring. Long ones travel through slots:
//
// - Rendezvous: the receiver posts a kReady record, then the sender fills slots.
// - Eager: a message that fits one slot may be sent before the kReady, as long as eager messages hold less
//   than a quarter of the slots.
//
// A receiver may keep a message in its slot (a view); views hold at most half of the slots. The rest of the
// slots only ever holds bytes that a receiver waits for. So slots cannot run out for good, in whatever order
// the members post their transfers. Every call of a member empties its rings, so short messages do not wait
// behind long ones.
#pragma once

#include <memory>
#include <vector>

#include "transport/shm_channel.h"
#include "transport/shm_segment.h"
#include "transport/transport.h"

namespace tfddl {

// The size in bytes of one member's segment in a group of `size` members.
size_t ShmSegmentBytes(const ShmGeometry& geometry, int size);

// `segments`: of all members, by rank. They must be zeroed before the first member makes its transport.
std::unique_ptr<Transport> MakeShmTransport(int rank, std::vector<ShmSegment> segments,
                                            const ShmGeometry& geometry, ShmArenas arenas = {});

}  // namespace tfddl
