#include <algorithm>
#include <optional>
#include <vector>

#include "core/collective.h"
#include "core/pipeline.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

class TreeBroadcast : public Collective {
 public:
  TreeBroadcast(Lane lane, const Request& request)
      : buffer_(request.buffers.at(0)),
        bytes_(static_cast<size_t>(buffer_.count) * SizeOf(request.dtype)),
        piece_bytes_(lane.transport->piece_bytes()) {
    const int size = lane.transport->size();
    const int root = lane.attendance->PlaceOf(request.root);
    const int place = (lane.transport->rank() - root + size) % size;  // 0 is the root
    char* data = static_cast<char*>(place == 0 ? const_cast<void*>(buffer_.in) : buffer_.out);
    if (place > 0 || buffer_.in == buffer_.out) copied_ = bytes_;

    // Place p > 0 hangs below p without its lowest set bit; its children differ in a lower bit.
    int mask = 1;
    for (; mask < size && !(place & mask); mask *= 2) {
    }
    if (place > 0) {
      from_.emplace(lane.transport, Pipeline::Direction::kReceive, (place - mask + root) % size, lane.tag,
                    data, bytes_);
    }
    for (mask /= 2; mask > 0; mask /= 2) {
      if (place + mask >= size) continue;
      to_.emplace_back(lane.transport, Pipeline::Direction::kSend, (place + mask + root) % size, lane.tag,
                       data, bytes_, [this] { return from_ ? from_->finished() : SIZE_MAX; });
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
    for (Pipeline& child : to_) {
      child.Poll();
      complete &= child.complete();
    }
    return complete;
  }

  // The root's own result, each piece right after its children have got it, while it lies in the cache.
  bool CopyPiece() {
    size_t ready = bytes_;
    for (const Pipeline& child : to_) ready = std::min(ready, child.finished() * piece_bytes_);
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
  std::optional<Pipeline> from_;
  std::vector<Pipeline> to_;
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcast(Lane lane, const Request& request) {
  return std::make_unique<TreeBroadcast>(lane, request);
}

}  // namespace tfddl
