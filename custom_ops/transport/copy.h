// Copies with streaming stores, which bypass the caches of the copying core.
#pragma once

#include <cstddef>
#include <vector>

namespace tfddl {

// Ranges of this size and larger do not fit the caches that ranks share, so streaming stores copy them: the
// processor need not read the overwritten lines, and data that other ranks wait for stays in the caches.
constexpr size_t kStreamBytes = size_t{4} << 20;

// As std::memcpy, with streaming stores if the processor has them. Use it to fill memory that another core
// has just read: fetching those lines into the cache would take several times as long as the copy.
void StreamCopy(void* to, const void* from, size_t bytes);

// As StreamCopy(), for many short ranges. Call StreamFence() after the last one, before peers are notified.
void StreamUnfenced(void* to, const void* from, size_t bytes);
void StreamFence();

// The functions by which this processor can stream whole lines of 64 bytes; the last one is the fastest.
std::vector<void (*)(char* to, const char* from, size_t bytes)> WaysToStreamLines();

// Copies a part of a range of `whole` bytes, by streaming stores if `whole` is kStreamBytes or more.
void CopyPart(void* to, const void* from, size_t bytes, size_t whole);

}  // namespace tfddl
