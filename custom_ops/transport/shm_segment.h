// Memory that the processes of one host share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/shm.h"

namespace tfddl {

// Gives every member's text to every member, by rank. All members call it equally often.
using ShmGather = std::function<std::vector<std::string>(const std::string& mine)>;

struct ShmOptions {
  // Memory without a name, which peers open through /proc/PID/fd: nothing is left of it after a crash,
  // and a container's limit on /dev/shm does not apply.
  bool memfd = true;
  // Where files are tried next; each has a name only until all members have opened it.
  std::string directory = "/dev/shm";
};

// Every member brings a zeroed segment of `bytes` and gets those of all, by rank. All members get them,
// or none: then the result is empty. *why tells what failed, on which member.
std::vector<ShmSegment> ShareSegments(size_t bytes, const ShmGather& gather, const ShmOptions& options,
                                      std::string* why);

// Enters a peer's memory into this process' page table up to `end`, of what lies behind `begin`, and returns
// where that ends. Else each page would be entered by a fault when it is first written, which takes four
// times as long.
size_t MapUpTo(char* memory, size_t begin, size_t end);

// How large the arena of one of `size` members is, alike on all members of a host.
size_t ArenaBytes(int size);

// As ShareSegments(), for arenas, which get their memory as they are used.
ShmArenas ShareArenas(size_t rank, size_t bytes, const ShmGather& gather, const ShmOptions& options);

}  // namespace tfddl
