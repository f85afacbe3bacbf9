#include <algorithm>
#include <cstring>
#include <vector>

#include "core/collective.h"
#include "core/pipeline.h"
#include "core/reduce.h"

namespace tfddl {
namespace {

// Up to here one exchange of everything beats two rounds of slices. What a rank receives counts.
constexpr size_t kSmallBytes = size_t{64} << 10;

// One contiguous range of elements to reduce.
struct Range {
  const char* in;
  char* out;
  int64_t count;
};

// Everybody sends all to all and reduces all: one message latency. The sum is formed in the order of
// the ranks by the same code everywhere, so the bits are equal although nobody copies them.
class SmallAllreduce : public Collective {
 public:
  SmallAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, Range range)
      : lane_(lane),
        pool_(pool),
        reduction_(reduction),
        range_(range),
        sources_(static_cast<size_t>(reduction.size)) {
    const size_t bytes = static_cast<size_t>(range.count) * SizeOf(reduction.dtype);
    scratch_ = pool->Take(bytes * sources_.size());
    for (int peer = 0; peer < reduction.size; ++peer) {
      const void** source = &sources_[static_cast<size_t>(peer)];
      if (peer == lane.transport->rank()) {
        *source = range.in;
        continue;
      }
      char* slot = scratch_.data() + bytes * static_cast<size_t>(peer);
      handles_.push_back(lane.transport->ReceiveView(peer, lane.tag, slot, bytes, source));
      handles_.push_back(lane.transport->Send(peer, lane.tag, range.in, bytes));
    }
  }
  ~SmallAllreduce() override { pool_->Give(std::move(scratch_)); }

  bool Poll() override {
    while (!handles_.empty()) {
      if (!lane_.transport->Test(handles_.back())) return false;
      handles_.pop_back();
    }
    Reduce(reduction_, sources_.data(), range_.out, range_.count);
    for (int peer = 0; peer < reduction_.size; ++peer) {
      if (peer != lane_.transport->rank()) {
        lane_.transport->Release(peer, sources_[static_cast<size_t>(peer)]);
      }
    }
    return true;
  }

 private:
  Lane lane_;
  ScratchPool* pool_;
  Reduction reduction_;
  Range range_;
  std::vector<char> scratch_;
  std::vector<const void*> sources_;
  std::vector<Transport::Handle> handles_;
};

// Rank r owns the r-th slice: it gets the others' parts of it on the first tag, reduces them piece by
// piece and sends each reduced piece to everybody on the second tag.
class SlicedAllreduce : public Collective {
 public:
  SlicedAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, Range range)
      : pool_(pool),
        reduction_(reduction),
        range_(range),
        rank_(lane.transport->rank()),
        piece_bytes_(lane.transport->piece_bytes()),
        pieces_(Pipeline::Pieces(lane.transport, Bytes(rank_))) {
    const size_t peers = static_cast<size_t>(reduction.size) - 1;
    // Of many ranks each owns little: without the limit 64 of them would hold gigabytes for a small tensor.
    slots_bytes_ = std::min(kPiecesInFlight * piece_bytes_, Bytes(rank_));
    scratch_ = pool->Take(peers * slots_bytes_);
    peers_.reserve(peers);  // the pipelines refer to each other
    for (int peer = 0; peer < reduction.size; ++peer) {
      if (peer != rank_) AddPeer(lane, peer);
    }
  }
  ~SlicedAllreduce() override { pool_->Give(std::move(scratch_)); }

  bool Poll() override {
    bool complete = true;
    for (Peer& peer : peers_) {
      peer.contribution.Poll();
      peer.send.Poll();
    }
    ReduceArrived();
    for (Peer& peer : peers_) {
      peer.distribution.Poll();
      peer.result.Poll();
      complete &= peer.contribution.complete() && peer.send.complete() && peer.distribution.complete() &&
                  peer.result.complete();
    }
    return complete && reduced_ == pieces_;
  }

 private:
  struct Peer {
    Pipeline send;          // my part of the peer's slice
    Pipeline contribution;  // its part of mine
    Pipeline distribution;  // my reduced slice
    Pipeline result;        // its reduced slice
    int rank;
  };

  size_t Begin(int rank) const {
    return static_cast<size_t>(range_.count * rank / reduction_.size) * SizeOf(reduction_.dtype);
  }
  size_t Bytes(int rank) const { return Begin(rank + 1) - Begin(rank); }

  void AddPeer(Lane lane, int peer) {
    using D = Pipeline::Direction;
    Transport* t = lane.transport;
    const size_t index = peers_.size();
    char* slots = scratch_.data() + index * slots_bytes_;
    char* in = const_cast<char*>(range_.in);  // only read: the direction is kSend
    auto unread = [this] { return reduced_ + kPiecesInFlight; };
    auto reduced = [this] { return reduced_; };
    // In place, a piece of the result may only come in once the input there has been sent.
    auto writable = [this, index] {
      return range_.in == range_.out ? peers_[index].send.finished() : SIZE_MAX;
    };
    peers_.push_back(
        {Pipeline(t, D::kSend, peer, lane.tag, in + Begin(peer), Bytes(peer)),
         Pipeline(t, D::kView, peer, lane.tag, slots, Bytes(rank_), unread, kPiecesInFlight),
         Pipeline(t, D::kSend, peer, lane.tag + 1, range_.out + Begin(rank_), Bytes(rank_), reduced),
         Pipeline(t, D::kReceive, peer, lane.tag + 1, range_.out + Begin(peer), Bytes(peer), writable),
         peer});
  }

  void ReduceArrived() {
    size_t arrived = pieces_;
    for (const Peer& peer : peers_) arrived = std::min(arrived, peer.contribution.finished());
    std::vector<const void*> sources(static_cast<size_t>(reduction_.size));
    for (; reduced_ < arrived; ++reduced_) {
      const size_t offset = Begin(rank_) + reduced_ * piece_bytes_;
      const size_t bytes = std::min(piece_bytes_, Begin(rank_ + 1) - offset);
      sources[static_cast<size_t>(rank_)] = range_.in + offset;
      for (const Peer& peer : peers_) {
        sources[static_cast<size_t>(peer.rank)] = peer.contribution.View(reduced_);
      }
      Reduce(reduction_, sources.data(), range_.out + offset,
             static_cast<int64_t>(bytes / SizeOf(reduction_.dtype)));
      for (Peer& peer : peers_) peer.contribution.Release(reduced_);
    }
  }

  ScratchPool* pool_;
  Reduction reduction_;
  Range range_;
  int rank_;
  size_t piece_bytes_;
  size_t pieces_;           // of my slice
  size_t slots_bytes_ = 0;  // per peer
  std::vector<char> scratch_;
  std::vector<Peer> peers_;
  size_t reduced_ = 0;
};

std::unique_ptr<Collective> ReduceRange(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                        Range range) {
  const size_t received = static_cast<size_t>(range.count) * SizeOf(reduction.dtype) *
                          static_cast<size_t>(std::max(reduction.size - 1, 1));
  if (received <= kSmallBytes) {
    return std::make_unique<SmallAllreduce>(lane, pool, reduction, range);
  }
  return std::make_unique<SlicedAllreduce>(lane, pool, reduction, range);
}

// Members of a group travel as one: packed into one range, reduced in place, unpacked.
class FusedAllreduce : public Collective {
 public:
  FusedAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, std::vector<Buffer> buffers)
      : pool_(pool), buffers_(std::move(buffers)), element_(SizeOf(reduction.dtype)) {
    int64_t count = 0;
    for (const Buffer& buffer : buffers_) count += buffer.count;
    fused_ = pool->Take(static_cast<size_t>(count) * element_);
    char* next = fused_.data();
    for (const Buffer& buffer : buffers_) {
      const size_t bytes = static_cast<size_t>(buffer.count) * element_;
      if (bytes > 0) std::memcpy(next, buffer.in, bytes);
      next += bytes;
    }
    range_ = ReduceRange(lane, pool, reduction, {fused_.data(), fused_.data(), count});
  }
  ~FusedAllreduce() override { pool_->Give(std::move(fused_)); }

  bool Poll() override {
    if (!range_->Poll()) return false;
    const char* next = fused_.data();
    for (const Buffer& buffer : buffers_) {
      const size_t bytes = static_cast<size_t>(buffer.count) * element_;
      if (bytes > 0) std::memcpy(buffer.out, next, bytes);
      next += bytes;
    }
    return true;
  }

 private:
  ScratchPool* pool_;
  std::vector<Buffer> buffers_;
  size_t element_;
  std::vector<char> fused_;
  std::unique_ptr<Collective> range_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduce(Lane lane, ScratchPool* pool, const Request& request) {
  const Reduction reduction{request.dtype, request.op, request.prescale, request.postscale,
                            lane.transport->size()};
  if (request.buffers.size() != 1) {
    return std::make_unique<FusedAllreduce>(lane, pool, reduction, request.buffers);
  }
  const Buffer& buffer = request.buffers[0];
  return ReduceRange(lane, pool, reduction,
                     {static_cast<const char*>(buffer.in), static_cast<char*>(buffer.out), buffer.count});
}

}  // namespace tfddl
