#include <cstring>
#include <optional>
#include <vector>

#include "core/collective.h"
#include "core/pipeline.h"

namespace tfddl {
namespace {

class TreeBroadcast : public Collective {
 public:
  TreeBroadcast(Lane lane, const Request& request) {
    const Buffer& buffer = request.buffers.at(0);
    const size_t bytes = static_cast<size_t>(buffer.count) * SizeOf(request.dtype);
    const int size = lane.transport->size();
    const int root = lane.attendance->PlaceOf(request.root);
    const int place = (lane.transport->rank() - root + size) % size;  // 0 is the root
    char* data = static_cast<char*>(buffer.out);
    if (place == 0 && bytes > 0 && buffer.in != buffer.out) std::memcpy(data, buffer.in, bytes);

    // Place p > 0 hangs below p without its lowest set bit; its children differ in a lower bit.
    int mask = 1;
    for (; mask < size && !(place & mask); mask *= 2) {
    }
    if (place > 0) {
      from_.emplace(lane.transport, Pipeline::Direction::kReceive, (place - mask + root) % size, lane.tag,
                    data, bytes);
    }
    for (mask /= 2; mask > 0; mask /= 2) {
      if (place + mask >= size) continue;
      to_.emplace_back(lane.transport, Pipeline::Direction::kSend, (place + mask + root) % size, lane.tag,
                       data, bytes, [this] { return from_ ? from_->finished() : SIZE_MAX; });
    }
  }

  bool Poll() override {
    bool complete = true;
    if (from_) {
      from_->Poll();
      complete = from_->complete();
    }
    for (Pipeline& child : to_) {
      child.Poll();
      complete &= child.complete();
    }
    return complete;
  }

 private:
  std::optional<Pipeline> from_;
  std::vector<Pipeline> to_;
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcast(Lane lane, const Request& request) {
  return std::make_unique<TreeBroadcast>(lane, request);
}

}  // namespace tfddl
