#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/notifications.h"
#include "core/collectives/pipeline.h"
#include "core/topology/broadcast_tree.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

// Whether a parent may write the result of its child directly. Both sides compute the same value.
bool MayWriteDirectly(const Transport& transport, int peer, size_t bytes) {
  return bytes >= kSharedBytes && transport.ArenaOf(peer);
}

// Receives from the parent: by messages, or by direct writes and notifications.
class FromParent {
 public:
  FromParent(Lane lane, int parent, char* data, size_t bytes)
      : lane_(lane),
        parent_(parent),
        pieces_(Pipeline::Pieces(lane.transport, bytes)),
        notifications_(lane.transport) {
    uint64_t offset = Arena::kNowhere;
    if (MayWriteDirectly(*lane.transport, parent, bytes)) {
      offset = lane.transport->arena()->Find(data);
      notifications_.Send(parent, lane.tag, {offset, 0});
    }
    if (offset == Arena::kNowhere) {
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
  bool complete() { return finished() == pieces_ && notifications_.Flushed(); }

 private:
  Lane lane_;
  int parent_;
  size_t pieces_;
  NotificationSender notifications_;
  NotificationReceiver written_;
  size_t finished_ = 0;
  std::optional<Pipeline> messages_;
};

// Sends to a child: by messages, or by direct writes and notifications.
class ToChild {
 public:
  // `ready` returns the number of pieces of `data` that may be sent.
  ToChild(Lane lane, int child, char* data, size_t bytes, std::function<size_t()> ready)
      : lane_(lane),
        child_(child),
        data_(data),
        bytes_(bytes),
        pieces_(Pipeline::Pieces(lane.transport, bytes)),
        ready_(std::move(ready)),
        notifications_(lane.transport) {
    if (MayWriteDirectly(*lane.transport, child, bytes)) {
      answer_.Expect(lane.transport, child, lane.tag);
    } else {
      UseMessages();
    }
  }

  void Poll() {
    if (!messages_ && !result_ && !TakeAnswer()) return;
    if (messages_) return messages_->Poll();
    WriteSome();
  }
  size_t finished() const { return messages_ ? messages_->finished() : finished_; }
  bool complete() { return finished() == pieces_ && notifications_.Flushed(); }

 private:
  static constexpr size_t kBatch = 4;  // pieces between two notifications

  // Whether the child has sent the offset of its result.
  bool TakeAnswer() {
    if (!answer_.Take(lane_.transport)) return false;
    const uint64_t offset = answer_.last().offset;
    if (offset == Arena::kNowhere) {
      UseMessages();
    } else {
      result_ = lane_.transport->Reach(child_, offset, bytes_);
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
    notifications_.Send(child_, lane_.tag, {0, finished_});
  }

  Lane lane_;
  int child_;
  char* data_;
  size_t bytes_;
  size_t pieces_;
  std::function<size_t()> ready_;
  NotificationSender notifications_;
  NotificationReceiver answer_;
  char* result_ = nullptr;  // the address of the child's result in this process
  size_t finished_ = 0;
  std::optional<Pipeline> messages_;
};

class TreeBroadcast : public Collective {
 public:
  TreeBroadcast(Lane lane, const Request& request)
      : buffer_(request.buffers.at(0)),
        bytes_(static_cast<size_t>(buffer_.count) * SizeOf(request.dtype)),
        piece_bytes_(lane.transport->piece_bytes()) {
    const int rank = lane.transport->rank();
    const BroadcastTree tree =
        TreeFor(Hosts(lane.transport->hosts(), rank), rank, lane.transport->size(),
                lane.participants->IndexOf(request.root), Pipeline::Pieces(lane.transport, bytes_));
    const bool is_root = tree.parent < 0;
    char* data = static_cast<char*>(is_root ? const_cast<void*>(buffer_.in) : buffer_.out);
    if (!is_root || buffer_.in == buffer_.out) copied_ = bytes_;
    if (!is_root) from_.emplace(lane, tree.parent, data, bytes_);
    for (int child : tree.children) {
      to_.emplace_back(lane, child, data, bytes_, [this] { return from_ ? from_->finished() : SIZE_MAX; });
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

  // Copies a piece of the root's own result right after sending it, while the piece is in the cache.
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
  std::deque<ToChild> to_;  // a deque's elements do not move
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcast(Lane lane, const Request& request) {
  return std::make_unique<TreeBroadcast>(lane, request);
}

}  // namespace tfddl
