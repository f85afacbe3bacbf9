#include <cstring>
#include <vector>

#include "core/collectives/adasum.h"
#include "core/collectives/collective.h"
#include "core/collectives/gathered_allreduce.h"
#include "core/collectives/hierarchical_allreduce.h"
#include "core/collectives/pipeline.h"
#include "core/collectives/shared_allreduce.h"
#include "core/collectives/slice_reduction.h"
#include "core/topology/by_hosts.h"
#include "core/topology/hosts.h"
#include "transport/arena.h"

namespace tfddl {
namespace {

// Each rank sends all its data to all ranks and reduces everything itself: one message latency. All ranks
// reduce in the same order by the same code, so the results have the same bits.
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

// A reduce-scatter on the first tag, an allgather on the second one. Each rank sends the pieces of its slice
// as soon as they are reduced.
class SlicedAllreduce : public Collective {
 public:
  SlicedAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, Range range)
      : bounds_(EqualSlices(reduction, range.count)),
        slices_(lane, pool, reduction, range.in, bounds_, range.out + Begin(lane.transport->rank())) {
    using D = Pipeline::Direction;
    Transport* t = lane.transport;
    const int rank = t->rank();
    auto reduced = [this] { return slices_.reduced(); };
    for (int peer = 0; peer < reduction.size; ++peer) {
      if (peer == rank) continue;
      // In place, a piece of the result may overwrite the input only after the input was sent.
      auto writable = [this, peer, in_place = range.in == range.out] {
        return in_place ? slices_.sent(peer) : SIZE_MAX;
      };
      peers_.push_back(
          {Pipeline(t, D::kSend, peer, lane.tag + 1, range.out + Begin(rank), Bytes(rank), reduced),
           Pipeline(t, D::kReceive, peer, lane.tag + 1, range.out + Begin(peer), Bytes(peer), writable)});
    }
  }

  bool Poll() override {
    slices_.Poll();
    bool complete = slices_.complete();
    for (Peer& peer : peers_) {
      peer.distribution.Poll();
      peer.result.Poll();
      complete &= peer.distribution.complete() && peer.result.complete();
    }
    return complete;
  }

 private:
  struct Peer {
    Pipeline distribution;  // of this rank's reduced slice, to the peer
    Pipeline result;        // the peer's reduced slice
  };

  static std::vector<size_t> EqualSlices(const Reduction& reduction, int64_t count) {
    std::vector<size_t> bounds;
    for (int rank = 0; rank <= reduction.size; ++rank) {
      bounds.push_back(static_cast<size_t>(count * rank / reduction.size) * SizeOf(reduction.dtype));
    }
    return bounds;
  }
  size_t Begin(int rank) const { return bounds_[static_cast<size_t>(rank)]; }
  size_t Bytes(int rank) const { return Begin(rank + 1) - Begin(rank); }

  std::vector<size_t> bounds_;
  SliceReduction slices_;
  std::vector<Peer> peers_;
};

size_t BytesOf(const Reduction& reduction, const Range& range) {
  return static_cast<size_t>(range.count) * SizeOf(reduction.dtype);
}

std::unique_ptr<Collective> ReduceByMessages(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                             Range range) {
  const size_t bytes = BytesOf(reduction, range);
  if (reduction.size > kMostDirectMembers) {
    if (bytes <= kGatheredBytes) return MakeGatheredAllreduce(lane, pool, reduction, range);
  } else if (IsSmall(bytes, reduction.size)) {
    return std::make_unique<SmallAllreduce>(lane, pool, reduction, range);
  }
  return std::make_unique<SlicedAllreduce>(lane, pool, reduction, range);
}

std::unique_ptr<Collective> ReduceAmongHosts(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                             Range range) {
  const Hosts hosts(lane.transport->hosts(), lane.transport->rank());
  if (!ReduceByHosts(reduction, hosts, static_cast<size_t>(range.count)))
    return ReduceByMessages(lane, pool, reduction, range);
  return MakeHierarchicalAllreduce(lane, pool, reduction, range, hosts, ReduceByMessages);
}

std::unique_ptr<Collective> ReduceRange(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                        Range range) {
  if (BytesOf(reduction, range) < kSharedBytes || !ReachEachOther(*lane.transport)) {
    return ReduceAmongHosts(lane, pool, reduction, range);
  }
  return MakeSharedAllreduce(lane, reduction, range,
                             [=] { return ReduceByMessages(lane, pool, reduction, range); });
}

// Packs the tensors of a group into one range, reduces it in place, and copies the results to the outputs
// that lie outside of the range.
class FusedAllreduce : public Collective {
 public:
  FusedAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, const Request& request)
      : pool_(pool), buffers_(request.buffers), element_(SizeOf(reduction.dtype)), block_(request.packed) {
    int64_t count = 0;
    for (const Buffer& buffer : buffers_) count += buffer.count;
    const size_t total = static_cast<size_t>(count) * element_;
    const auto arena = lane.transport->arena();
    if (!block_ && arena && total >= kSharedBytes) block_ = arena->Allocate(total);
    if (!block_) fused_ = pool->Take(total);
    char* const packed = Packed();
    char* next = packed;
    for (const Buffer& buffer : buffers_) {
      const size_t bytes = static_cast<size_t>(buffer.count) * element_;
      if (bytes > 0) std::memcpy(next, buffer.in, bytes);
      next += bytes;
    }
    range_ = ReduceRange(lane, pool, reduction, {packed, packed, count});
  }
  ~FusedAllreduce() override { pool_->Give(std::move(fused_)); }

  bool Poll() override {
    if (!range_->Poll()) return false;
    const char* next = Packed();
    for (const Buffer& buffer : buffers_) {
      const size_t bytes = static_cast<size_t>(buffer.count) * element_;
      if (bytes > 0 && buffer.out != next) std::memcpy(buffer.out, next, bytes);
      next += bytes;
    }
    return true;
  }

 private:
  char* Packed() { return block_ ? block_.get() : fused_.data(); }

  ScratchPool* pool_;
  std::vector<Buffer> buffers_;
  size_t element_;
  // The range lies in one of these:
  std::shared_ptr<char> block_;  // in the arena
  std::vector<char> fused_;
  std::unique_ptr<Collective> range_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllreduce(Lane lane, ScratchPool* pool, const Request& request) {
  if (request.op == ReduceOp::kAdasum) return MakeAdasum(lane, pool, request);
  const Reduction reduction = ReductionOf(lane, request);
  if (request.buffers.size() != 1) {
    return std::make_unique<FusedAllreduce>(lane, pool, reduction, request);
  }
  const Buffer& buffer = request.buffers[0];
  return ReduceRange(lane, pool, reduction,
                     {static_cast<const char*>(buffer.in), static_cast<char*>(buffer.out), buffer.count});
}

}  // namespace tfddl
