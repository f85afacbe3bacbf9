// The state that a member of the shared-memory transport keeps for one peer.
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

// Messages of this size and shorter travel in the ring: two copies cost less than a rendezvous.
constexpr size_t kShmShortBytes = size_t{4} << 10;

// Removes and returns the oldest value of a tag. A multimap keeps the insertion order of equal keys.
template <typename T>
std::optional<T> TakeFirst(std::multimap<int, T>* map, int tag) {
  const auto it = map->lower_bound(tag);
  if (it == map->end() || it->first != tag) return std::nullopt;
  T value = std::move(it->second);
  map->erase(it);
  return value;
}

// Removes the oldest value of a tag for which `predicate` holds. False if there is none.
template <typename T, typename Predicate>
bool EraseFirst(std::multimap<int, T>* map, int tag, Predicate predicate) {
  for (auto it = map->lower_bound(tag); it != map->end() && it->first == tag; ++it) {
    if (!predicate(it->second)) continue;
    map->erase(it);
    return true;
  }
  return false;
}

// A send or receive in progress.
struct ShmTransfer {
  int peer;
  int tag;
  char* to;          // of a receive
  const void* from;  // of a send
  size_t bytes;
  const void** view;  // receives the address if the message stays in its slot; null: it must not stay
  size_t moved = 0;
  bool complete = false;
};

struct ShmWaiting {  // a record that waits for room in the ring
  ShmRecord record;
  Transport::Handle handle;  // the send of a short message, else kNothing
};

struct ShmReady {  // a receive of the peer, which waits for a long message
  Transport::Handle handle;
  size_t bytes;
};

struct ShmMessage {  // arrived before its receive
  size_t bytes;
  std::vector<char> payload;   // of a short message
  std::optional<size_t> slot;  // of an eager message
};

struct ShmSlot {        // of this member's own channel
  uint64_t filled = 0;  // how often this member has filled it
  bool busy = false;    // as last seen
  bool eager = false;   // holds an eager message
};

struct ShmFilling {  // a send whose bytes go into slots
  Transport::Handle send;
  Transport::Handle receive;  // the peer's
};

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

  // Eager messages may hold a quarter of the slots and the reader's views half of them: a quarter remains.
  bool MaySendEagerly() {
    if (!filling.empty()) return false;
    if (EagerSlots() >= out.slots / 4) SeeFreed();
    return EagerSlots() < out.slots / 4;
  }

  ShmChannel out, in;
  ShmWriter writer;
  ShmReader reader;
  std::deque<ShmWaiting> waiting;
  // By tag, each in order. `sends` match `ready`; `unexpected` messages match `posted` receives.
  std::multimap<int, Transport::Handle> sends;  // kNothing: an eager message, which is complete
  std::multimap<int, ShmReady> ready;
  std::multimap<int, Transport::Handle> posted;
  std::multimap<int, ShmMessage> unexpected;
  std::deque<ShmFilling> filling;
  std::vector<ShmSlot> slots;  // of `out`
  size_t next_slot = 0;
  size_t views = 0;
  size_t mapped = 0;  // this many bytes of the peer's arena are in this process' page table

 private:
  // Reads the counters, which costs cache misses: call it only if no slot is known to be free.
  void SeeFreed() {
    for (size_t i = 0; i < out.slots; ++i) {
      slots[i].busy = slots[i].filled != out.freed[i].load(std::memory_order_acquire);
    }
  }

  size_t EagerSlots() const {
    return static_cast<size_t>(std::count_if(slots.begin(), slots.end(),
                                             [](const ShmSlot& slot) { return slot.busy && slot.eager; }));
  }
};

}  // namespace tfddl
