// Short messages of fixed form that need no answer, between members that reach each other's memory.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "transport/arena.h"
#include "transport/transport.h"

namespace tfddl {

struct Note {
  uint64_t place;   // where the sender's result lies in its arena, or Arena::kNowhere
  uint64_t pieces;  // how many are ready
};

// Those that this member sends; it has to live until they have left.
class NotesOut {
 public:
  explicit NotesOut(Transport* transport) : transport_(transport) {}

  void Send(int peer, int tag, const Note& note) {
    notes_.push_back({note, Transport::kNothing});
    auto& [kept, handle] = notes_.back();
    handle = transport_->Send(peer, tag, &kept, sizeof kept);
  }

  // Whether all have left.
  bool Flushed() {
    while (!notes_.empty() && transport_->Test(notes_.front().second)) notes_.pop_front();
    return notes_.empty();
  }

 private:
  Transport* transport_;
  std::deque<std::pair<Note, Transport::Handle>> notes_;  // whose elements do not move
};

// Those of one peer, one at a time. It may not move between Expect() and the note's coming.
class NotesIn {
 public:
  void Expect(Transport* transport, int peer, int tag) {
    handle_ = transport->Receive(peer, tag, &note_, sizeof note_);
    expected_ = true;
  }

  // True once for each note that was expected.
  bool Take(Transport* transport) {
    if (!expected_ || !transport->Test(handle_)) return false;
    expected_ = false;
    return true;
  }
  const Note& last() const { return note_; }

 private:
  Note note_{Arena::kNowhere, 0};
  Transport::Handle handle_ = Transport::kNothing;
  bool expected_ = false;
};

}  // namespace tfddl
