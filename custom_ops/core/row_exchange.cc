#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "core/collective.h"
#include "core/pipeline.h"
#include "core/row_agreement.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

// Each rank sends rows to each other: to all of them the same ones, or parts of its own.
class RowExchange : public Collective {
 public:
  RowExchange(Lane lane, const Request& request, std::function<void(std::function<void()>)> post)
      : lane_(lane),
        buffers_(request.buffers),
        element_(SizeOf(request.dtype)),
        agreement_(lane, request, std::move(post)) {}

  bool Poll() override {
    if (!agreed_) {
      if (!agreement_.Poll()) return false;
      if (!agreement_.status().ok()) return true;
      agreed_ = true;
      StartData();
    }
    do {
      for (Pipeline& transfer : transfers_) transfer.Poll();
    } while (CopyOwn());
    return std::all_of(transfers_.begin(), transfers_.end(), [](auto& t) { return t.complete(); });
  }

  Status status() const override { return agreement_.status(); }

 private:
  struct Own {  // rows from this rank to itself
    char* out;
    const char* in;
    size_t bytes;
    size_t copied = 0;
  };

  void StartData() {
    const auto size = static_cast<size_t>(lane_.transport->size());
    const auto rank = static_cast<size_t>(lane_.transport->rank());
    for (size_t peer = 0; peer < size; ++peer) {
      const Pipeline* last_sent = nullptr;
      const Pipeline* last_received = nullptr;
      for (size_t i = 0; i < buffers_.size(); ++i) {
        const auto row = buffers_[i].row * static_cast<int64_t>(element_);
        char* in = static_cast<char*>(const_cast<void*>(buffers_[i].in)) + agreement_.FirstSent(peer) * row;
        char* out = static_cast<char*>(agreement_.out(i)) + agreement_.FirstReceived(i, peer) * row;
        const auto bytes = static_cast<size_t>(agreement_.received(i, peer) * row);
        if (peer == rank) {
          own_.push_back({out, in, bytes});
          continue;
        }
        using D = Pipeline::Direction;
        last_received = Add(D::kReceive, peer, out, bytes, last_received);
        last_sent = Add(D::kSend, peer, in, static_cast<size_t>(agreement_.sent(i, peer) * row), last_sent);
      }
    }
  }

  // The members of a group share a tag, so that all pieces of one have to start before those of the next.
  const Pipeline* Add(Pipeline::Direction direction, size_t peer, char* data, size_t bytes,
                      const Pipeline* last) {
    if (bytes == 0) return last;
    std::function<size_t()> allowed;
    if (last) allowed = [last] { return last->all_started() ? SIZE_MAX : 0; };
    transfers_.emplace_back(lane_.transport, direction, static_cast<int>(peer), lane_.tag + 1, data, bytes,
                            std::move(allowed));
    return &transfers_.back();
  }

  // A piece of the rows that stay here, while the others' are under way. False when there is none left.
  bool CopyOwn() {
    if (own_.empty()) return false;
    Own& own = own_.back();
    const size_t length = std::min(lane_.transport->piece_bytes(), own.bytes - own.copied);
    CopyPart(own.out + own.copied, own.in + own.copied, length, own.bytes);
    own.copied += length;
    if (own.copied == own.bytes) own_.pop_back();
    return true;
  }

  Lane lane_;
  std::vector<Buffer> buffers_;
  size_t element_;
  RowAgreement agreement_;
  bool agreed_ = false;
  std::vector<Own> own_;
  std::deque<Pipeline> transfers_;  // they refer to each other
};

}  // namespace

std::unique_ptr<Collective> MakeRowExchange(Lane lane, const Request& request,
                                            std::function<void(std::function<void()>)> post) {
  return std::make_unique<RowExchange>(lane, request, std::move(post));
}

}  // namespace tfddl
