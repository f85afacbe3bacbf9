// Sends or receives one contiguous range in pieces, a few in flight at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "transport/copy.h"
#include "transport/transport.h"

namespace tfddl {

constexpr size_t kPiecesInFlight = 8;

class Pipeline {
 public:
  enum class Direction { kSend, kReceive, kView };

  // `allowed` returns the number of pieces that may start. With `slots` > 0, `data` holds only that many
  // pieces, used in turn, and `allowed` protects pieces that are still in use. With kView, a finished piece
  // lies at View() until Release().
  Pipeline(Transport* transport, Direction direction, int peer, int tag, char* data, size_t bytes,
           std::function<size_t()> allowed = nullptr, size_t slots = 0)
      : transport_(transport),
        direction_(direction),
        peer_(peer),
        tag_(tag),
        data_(data),
        bytes_(bytes),
        allowed_(std::move(allowed)),
        slots_(slots),
        views_(direction == Direction::kSend ? 0 : std::max(slots, kPiecesInFlight)) {}

  static size_t Pieces(const Transport* transport, size_t bytes) {
    return (bytes + transport->piece_bytes() - 1) / transport->piece_bytes();
  }

  void Poll() {
    while (!in_flight_.empty() && transport_->Test(in_flight_.front())) {
      in_flight_.pop_front();
      if (direction_ == Direction::kReceive) Land(finished_);
      ++finished_;
    }
    const size_t limit =
        std::min({Pieces(transport_, bytes_), allowed_ ? allowed_() : SIZE_MAX, finished_ + kPiecesInFlight});
    for (; started_ < limit; ++started_) in_flight_.push_back(Start());
  }

  bool all_started() const { return started_ == Pieces(transport_, bytes_); }
  size_t finished() const { return finished_; }
  bool complete() const { return finished_ == Pieces(transport_, bytes_); }

  const void* View(size_t piece) const { return views_[piece % views_.size()]; }
  void Release(size_t piece) { transport_->Release(peer_, View(piece)); }

 private:
  char* Address(size_t piece) const {
    return data_ + (slots_ ? piece % slots_ : piece) * transport_->piece_bytes();
  }
  size_t Length(size_t piece) const {
    return std::min(transport_->piece_bytes(), bytes_ - piece * transport_->piece_bytes());
  }

  Transport::Handle Start() {
    char* address = Address(started_);
    const size_t length = Length(started_);
    if (direction_ == Direction::kSend) return transport_->Send(peer_, tag_, address, length);
    return transport_->ReceiveView(peer_, tag_, address, length, &views_[started_ % views_.size()]);
  }

  // Copies a received piece to its address, unless the transport has done so.
  void Land(size_t piece) {
    char* address = Address(piece);
    if (View(piece) == address) return;
    CopyPart(address, View(piece), Length(piece), bytes_);
    Release(piece);
  }

  Transport* transport_;
  Direction direction_;
  int peer_;
  int tag_;
  char* data_;
  size_t bytes_;
  std::function<size_t()> allowed_;
  size_t slots_;
  std::vector<const void*> views_;
  std::deque<Transport::Handle> in_flight_;
  size_t started_ = 0;
  size_t finished_ = 0;
};

// Moves all of them. True once all are complete.
inline bool PollAll(std::deque<Pipeline>* transfers) {
  bool complete = true;
  for (Pipeline& transfer : *transfers) {
    transfer.Poll();
    complete &= transfer.complete();
  }
  return complete;
}

}  // namespace tfddl
