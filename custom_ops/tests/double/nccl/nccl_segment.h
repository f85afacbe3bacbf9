// The memory that the ranks of a communicator share, be they threads or processes of one host: a memfd, found
// by the process and descriptor in the unique id, so that nothing is left behind by a crash.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tests/double/nccl/nccl_abi.h"

namespace fake {

constexpr int kMaxRanks = 16;
constexpr size_t kSlotBytes = size_t{32} << 10;

// What a rank is about to do; all must say the same, but for a PreMulSum's factor.
struct Announcement {
  int32_t kind;
  int32_t type;
  int32_t op;
  int32_t root;
  uint64_t count;
};

struct SplitCall {
  int32_t color;
  int32_t key;
  ncclUniqueId id;  // of the child, from its first rank
};

struct RankArea {
  std::atomic<int32_t> joined;
  int32_t size;                    // of the communicator, as this rank was told
  int32_t device;                  // physical
  std::atomic<int64_t> host_step;  // see Comm::Meet
  std::atomic<int64_t> stream_step;
  Announcement call;
  SplitCall split;
  alignas(64) char slot[kSlotBytes];
};

// From one rank to another: a ring of bytes, each message behind its header.
struct Pipe {
  std::atomic<uint64_t> written;
  std::atomic<uint64_t> read;
  char ring[kSlotBytes];
};

struct Segment {
  uint64_t nonce;
  RankArea ranks[kMaxRanks];
  Pipe pipes[kMaxRanks][kMaxRanks];  // [from][to]
};

// A fresh segment's address; false when the system has no room.
bool MakeSegment(ncclUniqueId* id);

// Mapped once per process, so that the thread sanitizer sees what its threads do; null: the id is of no live
// segment.
std::shared_ptr<Segment> MapSegment(const ncclUniqueId& id);

// All ranks have mapped it: the process that made it closes its descriptor.
void SegmentMapped(const ncclUniqueId& id);

}  // namespace fake
