// Creates the memory that the processes of one host share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/arena.h"

namespace tfddl {

using ShmSegment = std::shared_ptr<char>;

// The arena of this member and the memory of all arenas, by rank. Both are empty if the arenas could not be
// created.
struct ShmArenas {
  std::shared_ptr<Arena> mine;
  std::vector<ShmSegment> all;
};

// An allgather of texts: returns the texts of all members, by rank. All members call it equally often.
using ShmGather = std::function<std::vector<std::string>(const std::string& mine)>;

struct ShmOptions {
  // Memory without a file name (memfd_create), which peers open through /proc/PID/fd. A crash leaves nothing
  // behind, and a container's limit on /dev/shm does not apply.
  bool memfd = true;
  // The directory for files, which are the second choice. A file loses its name once all members have opened
  // it.
  std::string directory = "/dev/shm";
};

// Each member creates a zeroed segment of `bytes` and gets the segments of all members, by rank. If one
// member fails, all members get an empty result, and *why names that member and the reason.
std::vector<ShmSegment> ShareSegments(size_t bytes, const ShmGather& gather, const ShmOptions& options,
                                      std::string* why);

// Enters the pages from `begin` to `end` of a peer's memory into this process' page table; returns the end,
// rounded up. A page fault on the first write of each page would take four times as long.
size_t MapUpTo(char* memory, size_t begin, size_t end);

// The size in bytes of the arena of one of `size` members. `memory`: what each of them may use
// (HostMemory()); all members of a host need arenas of one size, so they take the least.
size_t ArenaBytes(size_t memory, int size);

// As ShareSegments(), for arenas. Memory is committed as an arena fills.
ShmArenas ShareArenas(size_t rank, size_t bytes, const ShmGather& gather, const ShmOptions& options);

}  // namespace tfddl
