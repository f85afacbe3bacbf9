#include "core/collectives/hierarchical_slices.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/collectives/pipeline.h"
#include "core/collectives/segments.h"
#include "core/collectives/slice_reduction.h"

namespace tfddl {
namespace {

struct SliceSetting : HostLevels {
  const char* in;
  std::vector<size_t> bounds;
  char* out;
  // For each column, for each of its owners, the ranks whose slices the owner reduces for all hosts.
  std::vector<std::vector<std::vector<int>>> columns;
  size_t place;  // of this rank on its host
  int rank;
};

// The bytes from `begin` to `begin + length` of each slice, as far as there are any.
class SliceSegment {
 public:
  SliceSegment(const SliceSetting& setting, size_t begin, size_t length)
      : setting_(setting), begin_(begin), length_(length) {
    std::vector<size_t> bounds = Pack();
    if (setting_.owns()) SetAcross();
    const size_t partial = across_.empty() ? 0 : across_.back();
    partial_ = setting.pool->Take(partial);
    on_host_.emplace(setting.local, setting.pool, setting.steps.on_host, packed_.data(), std::move(bounds),
                     partial_.data(), setting.steps.accumulators);
  }
  ~SliceSegment() {
    setting_.pool->Give(std::move(packed_));
    setting_.pool->Give(std::move(partial_));
    setting_.pool->Give(std::move(results_));
  }
  SliceSegment(const SliceSegment&) = delete;  // the transfers refer to it
  SliceSegment& operator=(const SliceSegment&) = delete;

  bool ReduceOnHost() {
    on_host_->Poll();
    return on_host_->complete();
  }

  bool ReduceAcross() {
    if (!setting_.owns()) return true;
    if (!between_) {
      results_ = setting_.pool->Take(BytesOf(Mine()));
      char* const partial = partial_.data() + across_[Index()];
      between_.emplace(setting_.across, setting_.pool, setting_.steps.across, partial_.data(), across_,
                       setting_.steps.accumulators ? partial : results_.data());
    }
    between_->Poll();
    return between_->complete();
  }

  bool SendOnHost() {
    if (!sending_) StartSending();
    return PollAll(&transfers_);
  }

 private:
  // Brings the slices into the order of columns, owners and ranks. Returns the bounds of the columns, one for
  // each rank of this host; ranks that own none have empty ones.
  std::vector<size_t> Pack() {
    std::vector<size_t> bounds(1, 0);
    for (const auto& column : setting_.columns) {
      size_t bytes = bounds.back();
      for (const auto& ranks : column) bytes += BytesOf(ranks);
      bounds.push_back(bytes);
    }
    packed_ = setting_.pool->Take(bounds.back());
    char* next = packed_.data();
    for (const auto& column : setting_.columns) {
      for (const auto& ranks : column) {
        for (int rank : ranks) {
          const size_t bytes = Bytes(rank);
          if (bytes > 0) std::memcpy(next, setting_.in + Bound(rank) + begin_, bytes);
          next += bytes;
        }
      }
    }
    bounds.resize(static_cast<size_t>(setting_.steps.on_host.size) + 1, bounds.back());
    return bounds;
  }

  // The bounds, in the partial results of this rank's column, of the slices of each owner.
  void SetAcross() {
    across_.assign(1, 0);
    for (const auto& ranks : setting_.columns[setting_.place]) {
      const size_t count = BytesOf(ranks) / SizeOf(setting_.reduction.dtype);
      across_.push_back(across_.back() + count * SizeOf(setting_.steps.across.dtype));
    }
  }

  void StartSending() {
    sending_ = true;
    using D = Pipeline::Direction;
    Transport* const transport = setting_.local.transport;
    const int tag = setting_.local.tag + 1;
    char* const out = setting_.out + begin_;
    if (!setting_.owns()) {
      const int owner = static_cast<int>(setting_.place % setting_.columns.size());
      transfers_.emplace_back(transport, D::kReceive, owner, tag, out, Bytes(setting_.rank));
      return;
    }
    if (setting_.steps.accumulators) {
      const auto count = static_cast<int64_t>(BytesOf(Mine()) / SizeOf(setting_.reduction.dtype));
      FinishReduction(setting_.reduction, partial_.data() + across_[Index()], results_.data(), count);
    }
    char* next = results_.data();
    size_t place = setting_.place;
    for (int rank : Mine()) {
      if (rank != setting_.rank) {
        transfers_.emplace_back(transport, D::kSend, static_cast<int>(place), tag, next, Bytes(rank));
      } else if (Bytes(rank) > 0) {
        std::memcpy(out, next, Bytes(rank));
      }
      next += Bytes(rank);
      place += setting_.columns.size();
    }
  }

  size_t Index() const { return static_cast<size_t>(setting_.across.transport->rank()); }
  // The ranks of this host whose slices this rank reduces; their places differ by the number of columns.
  const std::vector<int>& Mine() const { return setting_.columns[setting_.place][Index()]; }
  size_t Bound(int rank) const { return setting_.bounds[static_cast<size_t>(rank)]; }
  size_t Bytes(int rank) const {
    const size_t whole = Bound(rank + 1) - Bound(rank);
    return begin_ >= whole ? 0 : std::min(length_, whole - begin_);
  }
  size_t BytesOf(const std::vector<int>& ranks) const {
    size_t bytes = 0;
    for (int rank : ranks) bytes += Bytes(rank);
    return bytes;
  }

  const SliceSetting& setting_;
  size_t begin_;
  size_t length_;
  std::vector<char> packed_;    // the inputs for all columns
  std::vector<char> partial_;   // the partial results of this rank's column
  std::vector<char> results_;   // the slices of Mine()
  std::vector<size_t> across_;  // of the owners, in partial_
  std::optional<SliceReduction> on_host_;
  std::optional<SliceReduction> between_;
  bool sending_ = false;
  std::deque<Pipeline> transfers_;
};

class HierarchicalSlices : public Collective {
 public:
  HierarchicalSlices(Lane lane, ScratchPool* pool, const Reduction& reduction, const char* in,
                     std::vector<size_t> bounds, char* out, const Hosts& hosts)
      : setting_{{lane, pool, reduction, hosts},
                 in,
                 std::move(bounds),
                 out,
                 ColumnsOf(hosts),
                 static_cast<size_t>(hosts.index(lane.transport->rank())),
                 lane.transport->rank()} {
    const auto owners = static_cast<size_t>(hosts.owners());
    const size_t element = SizeOf(reduction.dtype), slices = setting_.bounds.size() - 1;
    const size_t length = kSegmentBytes * owners / slices / element * element;
    size_t longest = 0;
    for (size_t slice = 0; slice < slices; ++slice) {
      longest = std::max(longest, setting_.bounds[slice + 1] - setting_.bounds[slice]);
    }
    segments_.emplace((longest + length - 1) / length, [this, length](size_t index, auto* segments) {
      segments->emplace_back(setting_, index * length, length);
    });
  }

  bool Poll() override { return segments_->Poll(); }

 private:
  static std::vector<std::vector<std::vector<int>>> ColumnsOf(const Hosts& hosts) {
    std::vector<std::vector<std::vector<int>>> columns(static_cast<size_t>(hosts.owners()));
    for (size_t column = 0; column < columns.size(); ++column) {
      for (int owner : hosts.OwnersOf(static_cast<int>(column))) {
        columns[column].emplace_back();
        const std::vector<int>& ranks = hosts.of(owner);
        for (size_t place = column; place < ranks.size(); place += columns.size()) {
          columns[column].back().push_back(ranks[place]);
        }
      }
    }
    return columns;
  }

  SliceSetting setting_;
  std::optional<Segments<SliceSegment>> segments_;
};

}  // namespace

std::unique_ptr<Collective> MakeHierarchicalSlices(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                                   const char* in, std::vector<size_t> bounds, char* out,
                                                   const Hosts& hosts) {
  return std::make_unique<HierarchicalSlices>(lane, pool, reduction, in, std::move(bounds), out, hosts);
}

}  // namespace tfddl
