#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/notifications.h"
#include "core/collectives/pipeline.h"
#include "core/collectives/row_agreement.h"
#include "core/topology/by_hosts.h"
#include "core/topology/hosts.h"
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
        gathers_(request.kind == Kind::kAllgather),
        size_(static_cast<size_t>(lane.transport->size())),
        rank_(static_cast<size_t>(lane.transport->rank())),
        hosts_(lane.transport->hosts(), lane.transport->rank()),
        agreement_(lane, request, std::move(post)),
        notifications_(lane.transport),
        writers_(size_) {}

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
    return copies_.empty() &&
           std::all_of(transfers_.begin(), transfers_.end(), [](auto& t) { return t.complete(); }) &&
           AllWritten() && notifications_.Flushed();
  }

  Status status() const override { return agreement_.status(); }

 private:
  struct Copy {  // rows from this rank to its own output, or to the output of a peer in an arena
    size_t receiver;
    char* out;
    const char* in;
    size_t bytes;
    const Pipeline* arrival;  // of rows that another host sends; null: they are here
    size_t copied = 0;
  };
  struct Writer {  // a peer that writes to this rank's outputs directly
    bool waited_for = false;
    NotificationReceiver written;
  };

  void StartData() {
    by_hosts_ = gathers_ && GatherByHosts(hosts_, OutputBytes());
    std::map<std::pair<size_t, size_t>, const Pipeline*> arrivals;  // of tensors and origins
    for (size_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) StartReceiving(peer, &arrivals);
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      copies_.push_back({rank_, Out(i, rank_), In(i, rank_), Bytes(i, agreement_.sent(i, rank_)), nullptr});
    }
    for (size_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) StartSending(peer, arrivals);
    }
  }

  void StartReceiving(size_t peer, std::map<std::pair<size_t, size_t>, const Pipeline*>* arrivals) {
    bool writes = false;
    const Pipeline* last = nullptr;
    for (size_t origin : Origins(peer, rank_)) {
      for (size_t i = 0; i < buffers_.size(); ++i) {
        const size_t bytes = Bytes(i, agreement_.received(i, origin));
        if (agreement_.Reached(i, peer)) {
          writes |= bytes > 0;
        } else if (bytes > 0) {
          last = Add(Pipeline::Direction::kReceive, peer, Out(i, origin), bytes, last, nullptr);
          (*arrivals)[{i, origin}] = last;
        }
      }
    }
    if (!writes) return;
    writers_[peer].waited_for = true;
    writers_[peer].written.Expect(lane_.transport, static_cast<int>(peer), lane_.tag);
  }

  void StartSending(size_t peer, const std::map<std::pair<size_t, size_t>, const Pipeline*>& arrivals) {
    const Pipeline* last = nullptr;
    for (size_t origin : Origins(rank_, peer)) {
      for (size_t i = 0; i < buffers_.size(); ++i) {
        const bool own = origin == rank_;
        const size_t bytes = Bytes(i, own ? agreement_.sent(i, peer) : agreement_.received(i, origin));
        if (bytes == 0) continue;
        char* const in = own ? In(i, peer) : Out(i, origin);
        const Pipeline* const arrival = own ? nullptr : arrivals.at({i, origin});
        if (char* const there = agreement_.OutAt(i, peer, origin)) {
          copies_.push_back({peer, there, in, bytes, arrival});
        } else {
          last = Add(Pipeline::Direction::kSend, peer, in, bytes, last, arrival);
        }
      }
    }
  }

  // The ranks whose rows `from` sends to `to`. In an allgather by hosts, one rank of each other host receives
  // the rows of a rank, and sends them on to the ranks of its host.
  std::vector<size_t> Origins(size_t from, size_t to) const {
    if (!by_hosts_) return {from};
    if (&hosts_.of(static_cast<int>(from)) != &hosts_.of(static_cast<int>(to))) {
      return ReceiverOf(from, to) == to ? std::vector<size_t>{from} : std::vector<size_t>();
    }
    std::vector<size_t> origins(1, from);
    for (size_t origin = 0; origin < size_; ++origin) {
      const bool far = &hosts_.of(static_cast<int>(origin)) != &hosts_.of(static_cast<int>(from));
      if (far && ReceiverOf(origin, from) == from) origins.push_back(origin);
    }
    return origins;
  }

  // The rank on the host of `there` that receives the rows of `origin`, a rank of another host.
  size_t ReceiverOf(size_t origin, size_t there) const {
    const std::vector<int>& ranks = hosts_.of(static_cast<int>(there));
    return static_cast<size_t>(
        ranks[static_cast<size_t>(hosts_.index(static_cast<int>(origin))) % ranks.size()]);
  }

  size_t OutputBytes() const {
    size_t bytes = 0;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      for (size_t peer = 0; peer < size_; ++peer) bytes += Bytes(i, agreement_.received(i, peer));
    }
    return bytes;
  }
  size_t Bytes(size_t buffer, int64_t rows) const {
    return static_cast<size_t>(rows * buffers_[buffer].row) * element_;
  }
  // The rows for a peer in this rank's input, and those of a peer in its output.
  char* In(size_t buffer, size_t peer) const {
    char* const in = static_cast<char*>(const_cast<void*>(buffers_[buffer].in));  // it is only read
    return in + Bytes(buffer, agreement_.FirstSent(peer));
  }
  char* Out(size_t buffer, size_t peer) const {
    return static_cast<char*>(agreement_.out(buffer)) + Bytes(buffer, agreement_.FirstReceived(buffer, peer));
  }

  // The tensors of a group share a tag, so all pieces of a tensor have to start before those of the next one.
  const Pipeline* Add(Pipeline::Direction direction, size_t peer, char* data, size_t bytes,
                      const Pipeline* last, const Pipeline* arrival) {
    std::function<size_t()> allowed;
    if (last || arrival) {
      allowed = [last, arrival]() -> size_t {
        if (last && !last->all_started()) return 0;
        return arrival ? arrival->finished() : SIZE_MAX;
      };
    }
    transfers_.emplace_back(lane_.transport, direction, static_cast<int>(peer), lane_.tag + 1, data, bytes,
                            std::move(allowed));
    return &transfers_.back();
  }

  // Copies a piece of each copy, in turns: rows for several ranks are read once, and messages can move in
  // between. False if there was nothing to copy.
  bool CopyPieces() {
    const size_t piece = lane_.transport->piece_bytes();
    const bool past_caches =
        std::any_of(copies_.begin(), copies_.end(), [](auto& copy) { return copy.bytes >= kStreamBytes; });
    const size_t step = past_caches ? kStepBytes : piece;
    bool copied = false;
    for (size_t done = 0; done < piece; done += step) {
      for (Copy& copy : copies_) {
        const size_t here =
            copy.arrival ? std::min(copy.bytes, copy.arrival->finished() * piece) : copy.bytes;
        const size_t at = copy.copied, length = std::min(step, here - at);
        if (length == 0) continue;
        CopyPart(copy.out + at, copy.in + at, length, copy.bytes);
        copy.copied += length;
        copied = true;
      }
    }
    NotifyReceivers();
    return copied;
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
  bool gathers_;
  size_t size_;
  size_t rank_;
  Hosts hosts_;
  bool by_hosts_ = false;
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
