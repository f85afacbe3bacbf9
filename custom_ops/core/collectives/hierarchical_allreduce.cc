#include "core/collectives/hierarchical_allreduce.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/collectives/participants.h"
#include "core/collectives/pipeline.h"
#include "core/collectives/slice_reduction.h"

namespace tfddl {
namespace {

// The bytes of a segment that each owner reduces. The three steps of consecutive segments overlap.
constexpr size_t kSegmentBytes = size_t{1} << 20;
constexpr size_t kSegmentsInFlight = 4;

// The state that all segments of an allreduce share.
struct Setting {
  Lane local;   // the ranks of this host
  Lane across;  // the owners of this rank's slice; unused if this rank owns none
  ScratchPool* pool;
  Reduction reduction;  // among the ranks of this host
  Reduction partial;    // of the partial results of all hosts
  int owners;
  bool owns;
  ReduceRangeBy by;
};

// A part of the range. Its three steps run one after the other; each returns true once it is complete.
class Segment {
 public:
  Segment(const Setting& setting, Range range) : setting_(setting), range_(range) {
    const int64_t owners = setting.owners;
    for (int64_t rank = 0; rank <= setting.reduction.size; ++rank) {
      bounds_.push_back(static_cast<size_t>(range.count * std::min(rank, owners) / owners) * Element());
    }
    partial_ = setting.pool->Take(static_cast<size_t>(Count()) * SizeOf(setting.partial.dtype));
    slices_.emplace(setting.local, setting.pool, setting.reduction, range.in, bounds_, partial_.data(), true);
  }
  ~Segment() { setting_.pool->Give(std::move(partial_)); }
  Segment(const Segment&) = delete;  // the transfers refer to it
  Segment& operator=(const Segment&) = delete;

  bool ReduceOnHost() {
    slices_->Poll();
    return slices_->complete();
  }

  bool ReduceAcross() {
    if (!setting_.owns) return true;
    if (!across_) {
      across_ = setting_.by(setting_.across, setting_.pool, setting_.partial,
                            {partial_.data(), partial_.data(), Count()});
    }
    return across_->Poll();
  }

  bool GatherOnHost() {
    if (!gathering_) StartGather();
    bool complete = true;
    for (Pipeline& transfer : transfers_) {
      transfer.Poll();
      complete &= transfer.complete();
    }
    return complete;
  }

 private:
  void StartGather() {
    gathering_ = true;
    FinishReduction(setting_.reduction, partial_.data(), range_.out + Begin(Rank()), Count());
    using D = Pipeline::Direction;
    Transport* const transport = setting_.local.transport;
    const int tag = setting_.local.tag + 1;
    for (int peer = 0; peer < setting_.reduction.size; ++peer) {
      if (peer == Rank()) continue;
      transfers_.emplace_back(transport, D::kSend, peer, tag, range_.out + Begin(Rank()), Bytes(Rank()));
      transfers_.emplace_back(transport, D::kReceive, peer, tag, range_.out + Begin(peer), Bytes(peer));
    }
  }

  size_t Element() const { return SizeOf(setting_.reduction.dtype); }
  int Rank() const { return setting_.local.transport->rank(); }
  size_t Begin(int rank) const { return bounds_[static_cast<size_t>(rank)]; }
  size_t Bytes(int rank) const { return Begin(rank + 1) - Begin(rank); }
  int64_t Count() const { return static_cast<int64_t>(Bytes(Rank()) / Element()); }

  const Setting& setting_;
  Range range_;
  std::vector<size_t> bounds_;  // of the slices of this host's ranks
  std::vector<char> partial_;   // this rank's slice: of this host, later of all hosts
  std::optional<SliceReduction> slices_;
  std::unique_ptr<Collective> across_;
  bool gathering_ = false;
  std::deque<Pipeline> transfers_;
};

// At most one segment is in each step, and segments pass each step in order, so all segments can use the same
// tags. Messages inside a host and messages between hosts have different peers, so they cannot be confused.
class HierarchicalAllreduce : public Collective {
 public:
  HierarchicalAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, Range range,
                        const Hosts& hosts, ReduceRangeBy by)
      : local_(TransportAmong(lane.transport, hosts.local())), range_(range) {
    const bool owns = !hosts.across().empty();
    if (owns) across_ = TransportAmong(lane.transport, hosts.across());
    Reduction on_host = reduction, partial = reduction;
    on_host.size = static_cast<int>(hosts.local().size());
    partial.dtype = AccumulatorType(reduction.dtype);
    if (partial.op == ReduceOp::kAverage) partial.op = ReduceOp::kSum;
    partial.prescale = partial.postscale = 1.0;
    partial.size = hosts.hosts();
    setting_.emplace(Setting{{local_.get(), lane.tag, lane.participants},
                             {across_.get(), lane.tag, lane.participants},
                             pool,
                             on_host,
                             partial,
                             hosts.owners(),
                             owns,
                             std::move(by)});
    const auto owners = static_cast<size_t>(hosts.owners());
    length_ = static_cast<int64_t>(kSegmentBytes * owners / SizeOf(reduction.dtype));
    count_ = static_cast<size_t>((range.count + length_ - 1) / length_);
  }

  bool Poll() override {
    bool moved = true;
    while (moved) {
      const bool on_host = Step(0, &Segment::ReduceOnHost);
      const bool across = Step(1, &Segment::ReduceAcross);
      moved = Step(2, &Segment::GatherOnHost) || across || on_host;
    }
    return ended_[2] == count_;
  }

 private:
  bool Step(size_t step, bool (Segment::*run)()) {
    const size_t index = ended_[step];
    if (index == (step == 0 ? std::min(count_, ended_[2] + kSegmentsInFlight) : ended_[step - 1]))
      return false;
    if (index == begun_) Begin();
    if (!(segments_[index - ended_[2]].*run)()) return false;
    ++ended_[step];
    if (step == 2) segments_.pop_front();
    return true;
  }

  void Begin() {
    const int64_t first = static_cast<int64_t>(begun_) * length_;
    const auto offset =
        static_cast<ptrdiff_t>(first) * static_cast<ptrdiff_t>(SizeOf(setting_->reduction.dtype));
    segments_.emplace_back(
        *setting_, Range{range_.in + offset, range_.out + offset, std::min(length_, range_.count - first)});
    ++begun_;
  }

  std::unique_ptr<Transport> local_, across_;
  Range range_;
  std::optional<Setting> setting_;
  int64_t length_ = 0;  // elements of a segment
  size_t count_ = 0;    // the number of segments
  size_t begun_ = 0;
  std::array<size_t, 3> ended_{};  // for each step, the number of segments that have completed it
  std::deque<Segment> segments_;   // in progress
};

}  // namespace

std::unique_ptr<Collective> MakeHierarchicalAllreduce(Lane lane, ScratchPool* pool,
                                                      const Reduction& reduction, Range range,
                                                      const Hosts& hosts, ReduceRangeBy across) {
  return std::make_unique<HierarchicalAllreduce>(lane, pool, reduction, range, hosts, std::move(across));
}

}  // namespace tfddl
