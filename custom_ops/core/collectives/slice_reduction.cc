#include "core/collectives/slice_reduction.h"

#include <algorithm>
#include <utility>

namespace tfddl {

SliceReduction::SliceReduction(Lane lane, ScratchPool* pool, const Reduction& reduction, const char* in,
                               std::vector<size_t> bounds, char* out, bool partly)
    : pool_(pool),
      reduction_(reduction),
      in_(in),
      bounds_(std::move(bounds)),
      out_(out),
      partly_(partly),
      rank_(lane.transport->rank()),
      piece_bytes_(lane.transport->piece_bytes()),
      pieces_(Pipeline::Pieces(lane.transport, Bytes(rank_))) {
  using D = Pipeline::Direction;
  const size_t peers = static_cast<size_t>(reduction.size) - 1;
  // With many ranks, a slice may be smaller than the slots: 64 ranks would hold gigabytes for a small tensor.
  const size_t slots_bytes = std::min(kPiecesInFlight * piece_bytes_, Bytes(rank_));
  scratch_ = pool->Take(peers * slots_bytes);
  auto unread = [this] { return reduced_ + kPiecesInFlight; };
  for (int peer = 0; peer < reduction.size; ++peer) {
    if (peer == rank_) continue;
    char* slots = scratch_.data() + peers_.size() * slots_bytes;
    char* part = const_cast<char*>(in_) + Begin(peer);  // kSend only reads it
    peers_.push_back(
        {Pipeline(lane.transport, D::kSend, peer, lane.tag, part, Bytes(peer)),
         Pipeline(lane.transport, D::kView, peer, lane.tag, slots, Bytes(rank_), unread, kPiecesInFlight),
         peer});
  }
}

void SliceReduction::Poll() {
  for (Peer& peer : peers_) {
    peer.contribution.Poll();
    peer.send.Poll();
  }
  ReduceArrived();
}

bool SliceReduction::complete() const {
  for (const Peer& peer : peers_) {
    if (!peer.contribution.complete() || !peer.send.complete()) return false;
  }
  return reduced_ == pieces_;
}

void SliceReduction::ReduceArrived() {
  size_t arrived = pieces_;
  for (const Peer& peer : peers_) arrived = std::min(arrived, peer.contribution.finished());
  std::vector<const void*> sources(static_cast<size_t>(reduction_.size));
  for (; reduced_ < arrived; ++reduced_) {
    const size_t offset = reduced_ * piece_bytes_;
    const size_t bytes = std::min(piece_bytes_, Bytes(rank_) - offset);
    sources[static_cast<size_t>(rank_)] = in_ + Begin(rank_) + offset;
    for (const Peer& peer : peers_) {
      sources[static_cast<size_t>(peer.rank)] = peer.contribution.View(reduced_);
    }
    const size_t element = SizeOf(reduction_.dtype);
    const auto count = static_cast<int64_t>(bytes / element);
    if (partly_) {
      char* const out = out_ + offset / element * SizeOf(AccumulatorType(reduction_.dtype));
      ReducePartly(reduction_, sources.data(), out, count);
    } else {
      Reduce(reduction_, sources.data(), out_ + offset, count);
    }
    for (Peer& peer : peers_) peer.contribution.Release(reduced_);
  }
}

}  // namespace tfddl
