// What a member of the shared-memory transport remembers of its messages.
#pragma once

#include <algorithm>
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

// False when there is none.
template <typename T, typename Predicate>
bool EraseFirst(std::multimap<int, T>* map, int tag, Predicate predicate) {
  for (auto it = map->lower_bound(tag); it != map->end() && it->first == tag; ++it) {
    if (!predicate(it->second)) continue;
    map->erase(it);
    return true;
  }
  return false;
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
  std::vector<char> payload;   // of a short one
  std::optional<size_t> slot;  // of one that came unasked
};

struct ShmSlot {         // where this member writes
  uint64_t filled = 0;   // how often
  bool busy = false;     // as last seen
  bool unasked = false;  // filled before the reader had said that memory stands ready
};

struct ShmFilling {
  Transport::Handle send;
  Transport::Handle receive;  // the peer's
};

// All that one member keeps for another.
struct ShmPeer {
  ShmPeer(const ShmChannel& out_, const ShmChannel& in_, size_t ring_bytes)
      : out(out_), in(in_), writer(out.ring, ring_bytes), reader(in.ring, ring_bytes), slots(out.slots) {}

  std::optional<size_t> FindSlot() {
    for (bool fresh : {false, true}) {
      if (fresh) SeeFreed();
      for (size_t i = 0; i < out.slots; ++i) {
        const size_t slot = (next_slot + i) % out.slots;
        if (slots[slot].busy) continue;
        next_slot = slot + 1;
        return slot;
      }
    }
    return std::nullopt;
  }

  // With half of the slots in the reader's views and a quarter here, some come free without anybody's doing.
  bool MayFillUnasked() {
    if (!filling.empty()) return false;
    if (Unasked() >= out.slots / 4) SeeFreed();
    return Unasked() < out.slots / 4;
  }

  ShmChannel out, in;
  ShmWriter writer;
  ShmReader reader;
  std::deque<ShmWaiting> waiting;
  // By tag. Sends meet ready memory, messages meet posted receives, in the order of each.
  std::multimap<int, Transport::Handle> sends;  // kNothing: its bytes have left unasked
  std::multimap<int, ShmReady> ready;
  std::multimap<int, Transport::Handle> posted;
  std::multimap<int, ShmMessage> unexpected;
  std::deque<ShmFilling> filling;
  std::vector<ShmSlot> slots;  // of `out`
  size_t next_slot = 0;
  size_t views = 0;
  size_t mapped = 0;  // of the peer's arena, how many bytes from its beginning

 private:
  // The reader's core has just written there, so that looking costs: only when no slot is known to be free.
  void SeeFreed() {
    for (size_t i = 0; i < out.slots; ++i) {
      slots[i].busy = slots[i].filled != out.freed[i].load(std::memory_order_acquire);
    }
  }

  size_t Unasked() const {
    return static_cast<size_t>(std::count_if(slots.begin(), slots.end(),
                                             [](const ShmSlot& slot) { return slot.busy && slot.unasked; }));
  }
};

}  // namespace tfddl
