// The memory that the ranks of a communicator share, as threads or processes of one host. It is a memfd,
// found by the process and descriptor in the unique id, so a crash leaves nothing behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tests/double/nccl/nccl_abi.h"

namespace fake {

constexpr int kMaxRanks = 16;
constexpr size_t kSlotBytes = size_t{32} << 10;

// The next collective of a rank. All ranks must have the same, except for the factor of a PreMulSum.
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

// A ring of bytes from one rank to another. Each message follows its header.
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

// Creates a segment and returns its address; false if the system has no memory.
bool MakeSegment(ncclUniqueId* id);

// Maps a segment once per process, so that the thread sanitizer sees the accesses of all threads. Null if no
// segment has this id.
std::shared_ptr<Segment> MapSegment(const ncclUniqueId& id);

// Called after all ranks have mapped the segment: its creator closes the descriptor.
void SegmentMapped(const ncclUniqueId& id);

}  // namespace fake
