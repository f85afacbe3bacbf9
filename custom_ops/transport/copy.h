// Copies that do not go through the caches of the core that makes them.
#pragma once

#include <cstddef>
#include <vector>

namespace tfddl {

// From here on a range is too large to stay in the caches that ranks share, so that its copy goes past them:
// what it overwrites need not be read first, and what others wait for is not displaced.
constexpr size_t kStreamBytes = size_t{4} << 20;

// As std::memcpy, but `to` is not brought into the caches where the processor can do that. The way to fill
// memory that another core has just read: to get its lines back first takes several times as long as the
// copy.
void StreamCopy(void* to, const void* from, size_t bytes);

// The same for many short ranges, between which the processor need not wait: StreamFence() belongs after the
// last of them, before anything that tells others of the copies.
void StreamUnfenced(void* to, const void* from, size_t bytes);
void StreamFence();

// How this processor can copy whole lines of 64 bytes so, the last of them the best.
std::vector<void (*)(char* to, const char* from, size_t bytes)> WaysToStreamLines();

// Copies a part of a range of `whole` bytes.
void CopyPart(void* to, const void* from, size_t bytes, size_t whole);

}  // namespace tfddl
