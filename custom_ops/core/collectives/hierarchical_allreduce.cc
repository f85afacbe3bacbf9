#include "core/collectives/hierarchical_allreduce.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/collectives/pipeline.h"
#include "core/collectives/segments.h"
#include "core/collectives/slice_reduction.h"

namespace tfddl {
namespace {

struct Setting : HostLevels {
  Setting(Lane lane, ScratchPool* scratch, const Reduction& whole, const Hosts& hosts, ReduceRangeBy reduce)
      : HostLevels(lane, scratch, whole, hosts), owners(hosts.owners()), by(std::move(reduce)) {}

  int owners;
  ReduceRangeBy by;
};

// A part of the range.
class Segment {
 public:
  Segment(const Setting& setting, Range range) : setting_(setting), range_(range) {
    const int64_t owners = setting.owners;
    for (int64_t rank = 0; rank <= setting.steps.on_host.size; ++rank) {
      bounds_.push_back(static_cast<size_t>(range.count * std::min(rank, owners) / owners) * Element());
    }
    partial_ = setting.pool->Take(static_cast<size_t>(Count()) * SizeOf(setting.steps.across.dtype));
    slices_.emplace(setting.local, setting.pool, setting.steps.on_host, range.in, bounds_, partial_.data(),
                    setting.steps.accumulators);
  }
  ~Segment() { setting_.pool->Give(std::move(partial_)); }
  Segment(const Segment&) = delete;  // the transfers refer to it
  Segment& operator=(const Segment&) = delete;

  bool ReduceOnHost() {
    slices_->Poll();
    return slices_->complete();
  }

  bool ReduceAcross() {
    if (!setting_.owns() || Count() == 0) return true;  // small data have fewer elements than owners
    if (!across_) {
      char* const result = setting_.steps.accumulators ? partial_.data() : range_.out + Begin(Rank());
      across_ = setting_.by(setting_.across, setting_.pool, setting_.steps.across,
                            {partial_.data(), result, Count()});
    }
    return across_->Poll();
  }

  bool SendOnHost() {
    if (!gathering_) StartGather();
    return PollAll(&transfers_);
  }

 private:
  void StartGather() {
    gathering_ = true;
    if (setting_.steps.accumulators) {
      FinishReduction(setting_.reduction, partial_.data(), range_.out + Begin(Rank()), Count());
    }
    using D = Pipeline::Direction;
    Transport* const transport = setting_.local.transport;
    const int tag = setting_.local.tag + 1;
    for (int peer = 0; peer < setting_.steps.on_host.size; ++peer) {
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

class HierarchicalAllreduce : public Collective {
 public:
  HierarchicalAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, Range range,
                        const Hosts& hosts, ReduceRangeBy by)
      : setting_(lane, pool, reduction, hosts, std::move(by)) {
    const size_t element = SizeOf(reduction.dtype);
    const auto length = static_cast<int64_t>(kSegmentBytes * static_cast<size_t>(hosts.owners()) / element);
    const auto count = static_cast<size_t>((range.count + length - 1) / length);
    segments_.emplace(count, [this, range, length, element](size_t index, std::deque<Segment>* segments) {
      const int64_t first = static_cast<int64_t>(index) * length;
      const auto offset = static_cast<ptrdiff_t>(first) * static_cast<ptrdiff_t>(element);
      segments->emplace_back(
          setting_, Range{range.in + offset, range.out + offset, std::min(length, range.count - first)});
    });
  }

  bool Poll() override { return segments_->Poll(); }

 private:
  Setting setting_;
  std::optional<Segments<Segment>> segments_;
};

}  // namespace

std::unique_ptr<Collective> MakeHierarchicalAllreduce(Lane lane, ScratchPool* pool,
                                                      const Reduction& reduction, Range range,
                                                      const Hosts& hosts, ReduceRangeBy across) {
  return std::make_unique<HierarchicalAllreduce>(lane, pool, reduction, range, hosts, std::move(across));
}

}  // namespace tfddl
