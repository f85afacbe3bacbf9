// What a member of the shared-memory transport remembers of its messages.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "transport/shm_channel.h"
#include "transport/transport.h"

namespace tfddl {

// Up to here the copy into the ring and out of it costs less than asking for memory first.
constexpr size_t kShmShortBytes = size_t{4} << 10;

// Of equal keys a multimap keeps the order of insertion.
template <typename T>
std::optional<T> TakeFirst(std::multimap<int, T>* map, int tag) {
  const auto it = map->lower_bound(tag);
  if (it == map->end() || it->first != tag) return std::nullopt;
  T value = std::move(it->second);
  map->erase(it);
  return value;
}

template <typename T, typename Predicate>
void EraseFirst(std::multimap<int, T>* map, int tag, Predicate predicate) {
  for (auto it = map->lower_bound(tag); it != map->end() && it->first == tag; ++it) {
    if (!predicate(it->second)) continue;
    map->erase(it);
    return;
  }
}

// A message on its way out or in, by its handle.
struct ShmTransfer {
  int peer;
  int tag;
  char* to;          // of a receive
  const void* from;  // of a send
  size_t bytes;
  const void** view;  // where to say that the message lies in a slot; null if it must not
  size_t moved = 0;
  bool complete = false;
};

struct ShmWaiting {  // for room in the ring
  ShmRecord record;
  Transport::Handle handle;  // of a short message that the record stands for
};

struct ShmReady {  // memory at the peer
  Transport::Handle handle;
  size_t bytes;
};

struct ShmMessage {
  size_t bytes;
  std::vector<char> payload;  // of a short one
};

struct ShmFilling {
  Transport::Handle send;
  Transport::Handle receive;  // the peer's
};

// All that one member keeps for another.
struct ShmPeer {
  ShmPeer(const ShmChannel& out_, const ShmChannel& in_, size_t ring_bytes)
      : out(out_), in(in_), writer(out.ring, ring_bytes), reader(in.ring, ring_bytes) {}
  ShmChannel out, in;
  ShmWriter writer;
  ShmReader reader;
  std::deque<ShmWaiting> waiting;
  // By tag. Sends meet ready memory, messages meet posted receives, in the order of each.
  std::multimap<int, Transport::Handle> sends;
  std::multimap<int, ShmReady> ready;
  std::multimap<int, Transport::Handle> posted;
  std::multimap<int, ShmMessage> unexpected;
  std::deque<ShmFilling> filling;
  size_t next_slot = 0;
  size_t views = 0;
};

}  // namespace tfddl
