#include "core/collectives/shared_allreduce.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "core/collectives/notes.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

constexpr size_t kPieceBytes = size_t{128} << 10;  // what ranks tell each other of
constexpr size_t kLead = 8;  // pieces staged ahead of what is reduced: they are still in the caches when read
constexpr size_t kChunkBytes = size_t{16} << 10;  // reduced, then copied from the first-level cache
constexpr size_t kBlockBytes = 512;  // or past them: so short that reads, sums and writes of several overlap

class SharedAllreduce : public Collective {
 public:
  SharedAllreduce(Lane lane, const Reduction& reduction, Range range,
                  std::function<std::unique_ptr<Collective>()> otherwise)
      : lane_(lane),
        reduction_(reduction),
        range_(range),
        bytes_(static_cast<size_t>(range.count) * SizeOf(reduction.dtype)),
        otherwise_(std::move(otherwise)),
        place_(lane.transport->arena()->Find(range.out)),
        out_(lane.transport) {
    for (int rank = 0; rank < reduction.size; ++rank) {
      if (rank == lane.transport->rank()) continue;
      peers_.emplace_back();
      peers_.back().rank = rank;
      peers_.back().pieces = Pieces(rank);
    }
    const bool unstaged = InPlace() || place_ == Arena::kNowhere;
    for (Peer& peer : peers_) {
      peer.staged = unstaged ? peer.pieces : 0;
      peer.staging.Expect(lane.transport, peer.rank, lane.tag);
      StagePiece(&peer);
      Announce(&peer);
    }
  }

  bool Poll() override {
    if (instead_) return instead_->Poll();
    Hear();
    if (!agreed_) {
      if (std::any_of(peers_.begin(), peers_.end(), [](auto& peer) { return !peer.heard; })) return false;
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
    return staged && over && told_ && out_.Flushed();
  }

 private:
  struct Peer {
    int rank = 0;
    size_t pieces = 0;     // of its slice
    size_t staged = 0;     // of those, how many lie in my result for it to read
    size_t announced = 0;  // and of how many of them it has been told
    char* result = nullptr;
    size_t ready = 0;    // of my slice, how many pieces lie in its result
    bool heard = false;  // where its result lies
    bool over = false;   // it has written its slice of mine
    NotesIn staging, reducing;
  };

  bool InPlace() const { return range_.in == range_.out; }

  // Slices begin on lines of their own.
  size_t Begin(int rank) const {
    constexpr size_t kLine = 64;
    const auto size = static_cast<size_t>(reduction_.size);
    const size_t slice = ((bytes_ + size - 1) / size + kLine - 1) / kLine * kLine;
    return std::min(slice * static_cast<size_t>(rank), bytes_);
  }
  size_t Pieces(int rank) const { return (Begin(rank + 1) - Begin(rank) + kPieceBytes - 1) / kPieceBytes; }
  // Where a piece of a rank's slice begins in the range, and its length.
  std::pair<size_t, size_t> Piece(int rank, size_t piece) const {
    const size_t begin = Begin(rank) + piece * kPieceBytes;
    return {begin, std::min(kPieceBytes, Begin(rank + 1) - begin)};
  }

  // Through the caches at every size: its owner reads it next, and writes the same lines.
  void StagePiece(Peer* peer) {
    if (peer->staged == peer->pieces) return;
    if (reduced_ < Pieces(lane_.transport->rank()) && peer->staged >= reduced_ + kLead) return;
    const auto [begin, length] = Piece(peer->rank, peer->staged++);
    std::memcpy(range_.out + begin, range_.in + begin, length);
  }

  void Announce(Peer* peer) {
    peer->announced = peer->staged;
    out_.Send(peer->rank, lane_.tag, {place_, peer->staged});
  }

  void Hear() {
    for (Peer& peer : peers_) {
      while (peer.staging.Take(lane_.transport)) {
        const Note& note = peer.staging.last();
        peer.heard = true;
        peer.ready = note.pieces;
        if (note.place != Arena::kNowhere && !peer.result) {
          peer.result = lane_.transport->Reach(peer.rank, note.place, bytes_);
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

  // All have heard of all. Until then each has sent one note and expects no other, so that what comes instead
  // can have the lane.
  bool Agree() {
    const bool all = place_ != Arena::kNowhere &&
                     std::all_of(peers_.begin(), peers_.end(), [](auto& peer) { return peer.result; });
    if (!all) {
      if (out_.Flushed()) instead_ = otherwise_();
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
    if (told_ || reduced_ < pieces) return;
    for (const Peer& peer : peers_) out_.Send(peer.rank, lane_.tag + 1, {place_, pieces});
    told_ = true;
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
      // Its lines have just been read, so that they lie in this core's caches.
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
  std::unique_ptr<Collective> instead_;
  uint64_t place_;
  NotesOut out_;
  std::deque<Peer> peers_;  // whose elements do not move
  std::vector<const void*> sources_;
  bool agreed_ = false;
  size_t reduced_ = 0;  // pieces of my slice
  bool told_ = false;   // the peers, that my slice is reduced
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
