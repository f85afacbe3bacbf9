#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/notes.h"
#include "core/collectives/pipeline.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

// Whether the one below may have its result written by the one above; both know it alike.
bool Reaches(const Transport& transport, int peer, size_t bytes) {
  return bytes >= kSharedBytes && transport.ArenaOf(peer);
}

// What comes from above: by messages, or written where it belongs, which a note tells.
class FromParent {
 public:
  FromParent(Lane lane, int parent, char* data, size_t bytes)
      : lane_(lane),
        parent_(parent),
        pieces_(Pipeline::Pieces(lane.transport, bytes)),
        notes_(lane.transport) {
    uint64_t place = Arena::kNowhere;
    if (Reaches(*lane.transport, parent, bytes)) {
      place = lane.transport->arena()->Find(data);
      notes_.Send(parent, lane.tag, {place, 0});
    }
    if (place == Arena::kNowhere) {
      messages_.emplace(lane.transport, Pipeline::Direction::kReceive, parent, lane.tag, data, bytes);
    } else {
      written_.Expect(lane.transport, parent, lane.tag);
    }
  }

  void Poll() {
    if (messages_) return messages_->Poll();
    while (written_.Take(lane_.transport)) {
      finished_ = written_.last().pieces;
      if (finished_ < pieces_) written_.Expect(lane_.transport, parent_, lane_.tag);
    }
  }
  size_t finished() const { return messages_ ? messages_->finished() : finished_; }
  bool complete() { return finished() == pieces_ && notes_.Flushed(); }

 private:
  Lane lane_;
  int parent_;
  size_t pieces_;
  NotesOut notes_;
  NotesIn written_;
  size_t finished_ = 0;
  std::optional<Pipeline> messages_;
};

class ToChild {
 public:
  // `ready` returns how many pieces of `data` may be sent.
  ToChild(Lane lane, int child, char* data, size_t bytes, std::function<size_t()> ready)
      : lane_(lane),
        child_(child),
        data_(data),
        bytes_(bytes),
        pieces_(Pipeline::Pieces(lane.transport, bytes)),
        ready_(std::move(ready)),
        notes_(lane.transport) {
    if (Reaches(*lane.transport, child, bytes)) {
      answer_.Expect(lane.transport, child, lane.tag);
    } else {
      UseMessages();
    }
  }

  void Poll() {
    if (!messages_ && !result_ && !Hear()) return;
    if (messages_) return messages_->Poll();
    WriteSome();
  }
  size_t finished() const { return messages_ ? messages_->finished() : finished_; }
  bool complete() { return finished() == pieces_ && notes_.Flushed(); }

 private:
  static constexpr size_t kBatch = 4;  // pieces between two notes

  // Whether the child has said where its result lies.
  bool Hear() {
    if (!answer_.Take(lane_.transport)) return false;
    const uint64_t place = answer_.last().place;
    if (place == Arena::kNowhere) {
      UseMessages();
    } else {
      result_ = lane_.transport->Reach(child_, place, bytes_);
    }
    return true;
  }

  void UseMessages() {
    messages_.emplace(lane_.transport, Pipeline::Direction::kSend, child_, lane_.tag, data_, bytes_, ready_);
  }

  void WriteSome() {
    const size_t end = std::min({pieces_, ready_(), finished_ + kBatch});
    if (finished_ >= end) return;
    const size_t piece = lane_.transport->piece_bytes(), begin = finished_ * piece;
    StreamCopy(result_ + begin, data_ + begin, std::min(end * piece, bytes_) - begin);
    finished_ = end;
    notes_.Send(child_, lane_.tag, {0, finished_});
  }

  Lane lane_;
  int child_;
  char* data_;
  size_t bytes_;
  size_t pieces_;
  std::function<size_t()> ready_;
  NotesOut notes_;
  NotesIn answer_;
  char* result_ = nullptr;  // the child's, in this process
  size_t finished_ = 0;
  std::optional<Pipeline> messages_;
};

class TreeBroadcast : public Collective {
 public:
  TreeBroadcast(Lane lane, const Request& request)
      : buffer_(request.buffers.at(0)),
        bytes_(static_cast<size_t>(buffer_.count) * SizeOf(request.dtype)),
        piece_bytes_(lane.transport->piece_bytes()) {
    const int size = lane.transport->size();
    const int root = lane.participants->PlaceOf(request.root);
    const int place = (lane.transport->rank() - root + size) % size;  // 0 is the root
    char* data = static_cast<char*>(place == 0 ? const_cast<void*>(buffer_.in) : buffer_.out);
    if (place > 0 || buffer_.in == buffer_.out) copied_ = bytes_;

    // Place p > 0 hangs below p without its lowest set bit; its children differ in a lower bit.
    int mask = 1;
    for (; mask < size && !(place & mask); mask *= 2) {
    }
    if (place > 0) from_.emplace(lane, (place - mask + root) % size, data, bytes_);
    for (mask /= 2; mask > 0; mask /= 2) {
      if (place + mask >= size) continue;
      to_.emplace_back(lane, (place + mask + root) % size, data, bytes_,
                       [this] { return from_ ? from_->finished() : SIZE_MAX; });
    }
  }

  bool Poll() override {
    bool complete = true;
    if (from_) {
      from_->Poll();
      complete = from_->complete();
    }
    bool sent = false;
    do {
      sent = PollChildren();
    } while (CopyPiece());
    return complete && sent && copied_ == bytes_;
  }

 private:
  bool PollChildren() {
    bool complete = true;
    for (ToChild& child : to_) {
      child.Poll();
      complete &= child.complete();
    }
    return complete;
  }

  // The root's own result, each piece right after its children have got it, while it lies in the cache.
  bool CopyPiece() {
    size_t ready = bytes_;
    for (const ToChild& child : to_) ready = std::min(ready, child.finished() * piece_bytes_);
    if (copied_ >= ready) return false;
    const size_t length = std::min(piece_bytes_, bytes_ - copied_);
    CopyPart(static_cast<char*>(buffer_.out) + copied_, static_cast<const char*>(buffer_.in) + copied_,
             length, bytes_);
    copied_ += length;
    return true;
  }

  Buffer buffer_;
  size_t bytes_;
  size_t piece_bytes_;
  size_t copied_ = 0;  // from the root's input to its output
  std::optional<FromParent> from_;
  std::deque<ToChild> to_;  // whose elements do not move
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcast(Lane lane, const Request& request) {
  return std::make_unique<TreeBroadcast>(lane, request);
}

}  // namespace tfddl
