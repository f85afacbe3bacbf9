#include "core/collectives/shared_allreduce.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "core/collectives/notifications.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

constexpr size_t kPieceBytes = size_t{128} << 10;  // the unit of notifications
constexpr size_t kLead =
    8;  // staged pieces ahead of the reduction; they are in the caches when they are read
constexpr size_t kChunkBytes = size_t{16} << 10;  // reduced, then copied from the first-level cache
constexpr size_t kBlockBytes = 512;  // with streaming stores; short, so that reads, sums and writes overlap

class SharedAllreduce : public Collective {
 public:
  SharedAllreduce(Lane lane, const Reduction& reduction, Range range,
                  std::function<std::unique_ptr<Collective>()> otherwise)
      : lane_(lane),
        reduction_(reduction),
        range_(range),
        bytes_(static_cast<size_t>(range.count) * SizeOf(reduction.dtype)),
        otherwise_(std::move(otherwise)),
        offset_(lane.transport->arena()->Find(range.out)),
        out_(lane.transport) {
    for (int rank = 0; rank < reduction.size; ++rank) {
      if (rank == lane.transport->rank()) continue;
      peers_.emplace_back();
      peers_.back().rank = rank;
      peers_.back().pieces = Pieces(rank);
    }
    const bool unstaged = InPlace() || offset_ == Arena::kNowhere;
    for (Peer& peer : peers_) {
      peer.staged = unstaged ? peer.pieces : 0;
      peer.staging.Expect(lane.transport, peer.rank, lane.tag);
      StagePiece(&peer);
      Announce(&peer);
    }
  }

  bool Poll() override {
    if (fallback_) return fallback_->Poll();
    TakeNotifications();
    if (!agreed_) {
      if (std::any_of(peers_.begin(), peers_.end(), [](auto& peer) { return !peer.known; })) return false;
      if (!Agree()) return false;
    }
    bool staged = true;
    for (Peer& peer : peers_) {
      StagePiece(&peer);
      if (peer.announced < peer.staged) Announce(&peer);
      staged &= peer.staged == peer.pieces;
    }
    ReduceReady();
    const bool over = std::all_of(peers_.begin(), peers_.end(), [](auto& peer) { return peer.over; });
    return staged && over && notified_ && out_.Flushed();
  }

 private:
  struct Peer {
    int rank = 0;
    size_t pieces = 0;       // of the peer's slice
    size_t staged = 0;       // pieces of the peer's slice in this rank's result
    size_t announced = 0;    // of the staged pieces, the number that the peer knows of
    char* result = nullptr;  // the address of the peer's result in this process
    size_t ready = 0;        // pieces of this rank's slice in the peer's result
    bool known = false;      // the peer has sent the offset of its result
    bool over = false;       // the peer has written its reduced slice to this rank's result
    NotificationReceiver staging, reducing;
  };

  bool InPlace() const { return range_.in == range_.out; }

  // Slices are aligned to cache lines.
  size_t Begin(int rank) const {
    constexpr size_t kLine = 64;
    const auto size = static_cast<size_t>(reduction_.size);
    const size_t slice = ((bytes_ + size - 1) / size + kLine - 1) / kLine * kLine;
    return std::min(slice * static_cast<size_t>(rank), bytes_);
  }
  size_t Pieces(int rank) const { return (Begin(rank + 1) - Begin(rank) + kPieceBytes - 1) / kPieceBytes; }
  // The offset of a piece of a rank's slice in the range, and its length.
  std::pair<size_t, size_t> Piece(int rank, size_t piece) const {
    const size_t begin = Begin(rank) + piece * kPieceBytes;
    return {begin, std::min(kPieceBytes, Begin(rank + 1) - begin)};
  }

  // No streaming stores, whatever the size: the owner reads and overwrites these lines next.
  void StagePiece(Peer* peer) {
    if (peer->staged == peer->pieces) return;
    if (reduced_ < Pieces(lane_.transport->rank()) && peer->staged >= reduced_ + kLead) return;
    const auto [begin, length] = Piece(peer->rank, peer->staged++);
    std::memcpy(range_.out + begin, range_.in + begin, length);
  }

  void Announce(Peer* peer) {
    peer->announced = peer->staged;
    out_.Send(peer->rank, lane_.tag, {offset_, peer->staged});
  }

  void TakeNotifications() {
    for (Peer& peer : peers_) {
      while (peer.staging.Take(lane_.transport)) {
        const Notification& notification = peer.staging.last();
        peer.known = true;
        peer.ready = notification.pieces;
        if (notification.offset != Arena::kNowhere && !peer.result) {
          peer.result = lane_.transport->Reach(peer.rank, notification.offset, bytes_);
        }
        if (agreed_) ExpectMore(&peer);
      }
      if (peer.reducing.Take(lane_.transport)) peer.over = true;
    }
  }

  void ExpectMore(Peer* peer) {
    if (peer->ready < Pieces(lane_.transport->rank())) {
      peer->staging.Expect(lane_.transport, peer->rank, lane_.tag);
    }
  }

  // Called once this rank knows the offsets of all results. Up to here each rank has sent one notification to
  // each peer and expects no other, so the fallback can use the lane.
  bool Agree() {
    const bool all = offset_ != Arena::kNowhere &&
                     std::all_of(peers_.begin(), peers_.end(), [](auto& peer) { return peer.result; });
    if (!all) {
      if (out_.Flushed()) fallback_ = otherwise_();
      return false;
    }
    agreed_ = true;
    for (Peer& peer : peers_) {
      peer.reducing.Expect(lane_.transport, peer.rank, lane_.tag + 1);
      ExpectMore(&peer);
    }
    return true;
  }

  void ReduceReady() {
    const int rank = lane_.transport->rank();
    const size_t pieces = Pieces(rank);
    size_t ready = pieces;
    for (const Peer& peer : peers_) ready = std::min(ready, peer.ready);
    for (; reduced_ < ready; ++reduced_) {
      const auto [begin, length] = Piece(rank, reduced_);
      ReducePiece(begin, length);
    }
    if (notified_ || reduced_ < pieces) return;
    for (const Peer& peer : peers_) out_.Send(peer.rank, lane_.tag + 1, {offset_, pieces});
    notified_ = true;
  }

  void ReducePiece(size_t begin, size_t length) {
    const bool past_caches = !InPlace() && bytes_ >= kStreamBytes;
    const size_t step = past_caches ? kBlockBytes : kChunkBytes;
    alignas(64) char block[kBlockBytes];
    for (size_t done = 0; done < length; done += step) {
      const size_t at = begin + done, bytes = std::min(step, length - done);
      char* const reduced = past_caches ? block : range_.out + at;
      ReduceTo(reduced, at, bytes);
      if (past_caches) StreamUnfenced(range_.out + at, reduced, bytes);
      // A plain copy: this core has just read these lines, so they are in its caches.
      for (const Peer& peer : peers_) std::memcpy(peer.result + at, reduced, bytes);
    }
    if (past_caches) StreamFence();
  }

  void ReduceTo(char* reduced, size_t begin, size_t length) {
    sources_.resize(static_cast<size_t>(reduction_.size));
    sources_[static_cast<size_t>(lane_.transport->rank())] = range_.in + begin;
    for (const Peer& peer : peers_) sources_[static_cast<size_t>(peer.rank)] = peer.result + begin;
    Reduce(reduction_, sources_.data(), reduced, static_cast<int64_t>(length / SizeOf(reduction_.dtype)));
  }

  Lane lane_;
  Reduction reduction_;
  Range range_;
  size_t bytes_;
  std::function<std::unique_ptr<Collective>()> otherwise_;
  std::unique_ptr<Collective> fallback_;
  uint64_t offset_;  // of this rank's result in its arena
  NotificationSender out_;
  std::deque<Peer> peers_;  // a deque's elements do not move
  std::vector<const void*> sources_;
  bool agreed_ = false;
  size_t reduced_ = 0;     // pieces of this rank's slice
  bool notified_ = false;  // the peers know that this rank's slice is reduced
};

}  // namespace

bool ReachEachOther(const Transport& transport) {
  if (!transport.arena()) return false;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer != transport.rank() && !transport.ArenaOf(peer)) return false;
  }
  return transport.size() > 1;
}

std::unique_ptr<Collective> MakeSharedAllreduce(Lane lane, const Reduction& reduction, Range range,
                                                std::function<std::unique_ptr<Collective>()> otherwise) {
  return std::make_unique<SharedAllreduce>(lane, reduction, range, std::move(otherwise));
}

}  // namespace tfddl
