// Moves one contiguous range to or from a peer in pieces, a few in flight at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>

#include "transport/transport.h"

namespace tfddl {

// Small enough that reducing one piece overlaps with moving the next and stays in the second-level
// cache, large enough that a message's fixed cost does not show.
constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr size_t kPiecesInFlight = 8;

class Pipeline {
 public:
  enum class Direction { kSend, kReceive };

  // `allowed` returns how many pieces may have started. With `slots` > 0, `data` holds only that many
  // pieces, used in turn; `allowed` then keeps a piece from being overwritten before it was read.
  Pipeline(Transport* transport, Direction direction, int peer, int tag, char* data, size_t bytes,
           std::function<size_t()> allowed = nullptr, size_t slots = 0)
      : transport_(transport),
        direction_(direction),
        peer_(peer),
        tag_(tag),
        data_(data),
        bytes_(bytes),
        allowed_(std::move(allowed)),
        slots_(slots) {}

  static size_t Pieces(size_t bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes; }

  void Poll() {
    while (!in_flight_.empty() && transport_->Test(in_flight_.front())) {
      in_flight_.pop_front();
      ++finished_;
    }
    const size_t limit =
        std::min({Pieces(bytes_), allowed_ ? allowed_() : SIZE_MAX, finished_ + kPiecesInFlight});
    for (; started_ < limit; ++started_) {
      const size_t length = std::min(kPieceBytes, bytes_ - started_ * kPieceBytes);
      char* piece = data_ + (slots_ ? started_ % slots_ : started_) * kPieceBytes;
      in_flight_.push_back(direction_ == Direction::kSend ? transport_->Send(peer_, tag_, piece, length)
                                                          : transport_->Receive(peer_, tag_, piece, length));
    }
  }

  size_t finished() const { return finished_; }
  bool complete() const { return finished_ == Pieces(bytes_); }

 private:
  Transport* transport_;
  Direction direction_;
  int peer_;
  int tag_;
  char* data_;
  size_t bytes_;
  std::function<size_t()> allowed_;
  size_t slots_;
  std::deque<Transport::Handle> in_flight_;
  size_t started_ = 0;
  size_t finished_ = 0;
};

}  // namespace tfddl
