#include <algorithm>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/notifications.h"
#include "core/collectives/pipeline.h"
#include "core/collectives/row_agreement.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

constexpr size_t kStepBytes = size_t{16}
                              << 10;  // of streaming copies; short, so that reads and writes overlap

// Each rank sends rows to each rank: all its rows (allgather), or a part of them (alltoall).
class RowExchange : public Collective {
 public:
  RowExchange(Lane lane, const Request& request, Post post)
      : lane_(lane),
        buffers_(request.buffers),
        element_(SizeOf(request.dtype)),
        agreement_(lane, request, std::move(post)),
        notifications_(lane.transport),
        writers_(static_cast<size_t>(lane.transport->size())) {}

  bool Poll() override {
    if (!agreed_) {
      if (!agreement_.Poll()) return false;
      if (!agreement_.status().ok()) return true;
      agreed_ = true;
      StartData();
    }
    do {
      for (Pipeline& transfer : transfers_) transfer.Poll();
    } while (CopyPieces());
    return std::all_of(transfers_.begin(), transfers_.end(), [](auto& t) { return t.complete(); }) &&
           AllWritten() && notifications_.Flushed();
  }

  Status status() const override { return agreement_.status(); }

 private:
  struct Copy {  // rows from this rank to its own output, or to the output of a peer in an arena
    size_t receiver;
    char* out;
    const char* in;
    size_t bytes;
    size_t copied = 0;
  };
  struct Writer {  // a peer that writes to this rank's outputs directly
    bool waited_for = false;
    NotificationReceiver written;
  };

  void StartData() {
    const auto size = static_cast<size_t>(lane_.transport->size());
    const auto rank = static_cast<size_t>(lane_.transport->rank());
    for (size_t peer = 0; peer < size; ++peer) {
      bool writes = false;
      const Pipeline* last_sent = nullptr;
      const Pipeline* last_received = nullptr;
      for (size_t i = 0; i < buffers_.size(); ++i) {
        const auto row = buffers_[i].row * static_cast<int64_t>(element_);
        char* in = static_cast<char*>(const_cast<void*>(buffers_[i].in)) + agreement_.FirstSent(peer) * row;
        char* out = static_cast<char*>(agreement_.out(i)) + agreement_.FirstReceived(i, peer) * row;
        const auto received = static_cast<size_t>(agreement_.received(i, peer) * row);
        const auto sent = static_cast<size_t>(agreement_.sent(i, peer) * row);
        if (peer == rank) {
          copies_.push_back({rank, out, in, sent});
          continue;
        }
        using D = Pipeline::Direction;
        if (agreement_.Reached(i, peer)) {
          writes |= received > 0;
        } else {
          last_received = Add(D::kReceive, peer, out, received, last_received);
        }
        if (char* const there = agreement_.OutAt(i, peer)) {
          if (sent > 0) copies_.push_back({peer, there, in, sent});
        } else {
          last_sent = Add(D::kSend, peer, in, sent, last_sent);
        }
      }
      if (!writes) continue;
      writers_[peer].waited_for = true;
      writers_[peer].written.Expect(lane_.transport, static_cast<int>(peer), lane_.tag);
    }
  }

  // The tensors of a group share a tag, so all pieces of a tensor have to start before those of the next one.
  const Pipeline* Add(Pipeline::Direction direction, size_t peer, char* data, size_t bytes,
                      const Pipeline* last) {
    if (bytes == 0) return last;
    std::function<size_t()> allowed;
    if (last) allowed = [last] { return last->all_started() ? SIZE_MAX : 0; };
    transfers_.emplace_back(lane_.transport, direction, static_cast<int>(peer), lane_.tag + 1, data, bytes,
                            std::move(allowed));
    return &transfers_.back();
  }

  // Copies a piece of each copy, in turns: rows for several ranks are read once, and messages can move in
  // between. False if no copy is left.
  bool CopyPieces() {
    const size_t piece = lane_.transport->piece_bytes();
    const bool past_caches =
        std::any_of(copies_.begin(), copies_.end(), [](auto& copy) { return copy.bytes >= kStreamBytes; });
    const size_t step = past_caches ? kStepBytes : piece;
    for (size_t done = 0; done < piece; done += step) {
      for (Copy& copy : copies_) {
        const size_t at = copy.copied, length = std::min(step, copy.bytes - at);
        CopyPart(copy.out + at, copy.in + at, length, copy.bytes);
        copy.copied += length;
      }
    }
    NotifyReceivers();
    return !copies_.empty();
  }

  // Notifies each peer once all its rows are written.
  void NotifyReceivers() {
    std::set<size_t> ended, open;
    for (const Copy& copy : copies_) (copy.copied == copy.bytes ? ended : open).insert(copy.receiver);
    const auto over = [](const Copy& copy) { return copy.copied == copy.bytes; };
    copies_.erase(std::remove_if(copies_.begin(), copies_.end(), over), copies_.end());
    for (size_t receiver : ended) {
      if (open.count(receiver) != 0 || receiver == static_cast<size_t>(lane_.transport->rank())) continue;
      notifications_.Send(static_cast<int>(receiver), lane_.tag, {0, 1});
    }
  }

  bool AllWritten() {
    bool all = true;
    for (Writer& writer : writers_) {
      if (writer.waited_for && writer.written.Take(lane_.transport)) writer.waited_for = false;
      all &= !writer.waited_for;
    }
    return all;
  }

  Lane lane_;
  std::vector<Buffer> buffers_;
  size_t element_;
  RowAgreement agreement_;
  bool agreed_ = false;
  NotificationSender notifications_;
  std::vector<Copy> copies_;
  std::vector<Writer> writers_;     // by index; they do not move
  std::deque<Pipeline> transfers_;  // a deque's elements do not move: transfers refer to each other
};

}  // namespace

std::unique_ptr<Collective> MakeRowExchange(Lane lane, const Request& request, Post post) {
  return std::make_unique<RowExchange>(lane, request, std::move(post));
}

}  // namespace tfddl
