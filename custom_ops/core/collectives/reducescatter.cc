#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/collectives/hierarchical_slices.h"
#include "core/collectives/slice_reduction.h"
#include "core/topology/by_hosts.h"

namespace tfddl {
namespace {

// A group is packed rank by rank: the rows of all tensors for one rank form one slice, which is reduced in
// place and unpacked. While ranks have joined, a single tensor is packed as well, without the rows of the
// joined ranks.
class Reducescatter : public Collective {
 public:
  Reducescatter(Lane lane, ScratchPool* pool, const Request& request)
      : pool_(pool),
        buffers_(request.buffers),
        element_(SizeOf(request.dtype)),
        participants_(*lane.participants) {
    const int index = lane.transport->rank();
    rank_ = participants_.ranks[static_cast<size_t>(index)];
    pack_ = buffers_.size() > 1 || !participants_.complete();
    std::vector<size_t> bounds(1, 0);
    for (int owner : participants_.ranks) {
      size_t bytes = 0;
      for (const Buffer& buffer : buffers_) bytes += PartOf(buffer, owner).bytes;
      bounds.push_back(bounds.back() + bytes);
    }
    const char* in = static_cast<const char*>(buffers_.at(0).in);
    slice_ = static_cast<char*>(buffers_[0].out);
    if (pack_) {
      Pack(bounds.back());
      in = packed_.data();
      slice_ = packed_.data() + bounds[static_cast<size_t>(index)];
    }
    const Hosts hosts(lane.transport->hosts(), index);
    const Reduction reduction = ReductionOf(lane, request);
    if (ScatterByHosts(reduction, hosts, bounds.back() / element_)) {
      by_hosts_ = MakeHierarchicalSlices(lane, pool, reduction, in, std::move(bounds), slice_, hosts);
    } else {
      slices_.emplace(lane, pool, reduction, in, std::move(bounds), slice_);
    }
  }
  ~Reducescatter() override { pool_->Give(std::move(packed_)); }

  bool Poll() override {
    if (!Reduced()) return false;
    if (pack_) Unpack();
    return true;
  }

 private:
  bool Reduced() {
    if (by_hosts_) return by_hosts_->Poll();
    slices_->Poll();
    return slices_->complete();
  }

  struct Part {
    size_t begin;
    size_t bytes;
  };

  Part PartOf(const Buffer& buffer, int owner) const {
    const size_t row = static_cast<size_t>(buffer.row) * element_;
    const auto begin = static_cast<size_t>(RowsBegin(buffer.rows, owner, participants_.set_size()));
    const auto end = static_cast<size_t>(RowsBegin(buffer.rows, owner + 1, participants_.set_size()));
    return {begin * row, (end - begin) * row};
  }

  void Pack(size_t bytes) {
    packed_ = pool_->Take(bytes);
    char* next = packed_.data();
    for (int owner : participants_.ranks) {
      for (const Buffer& buffer : buffers_) {
        const Part part = PartOf(buffer, owner);
        if (part.bytes > 0) std::memcpy(next, static_cast<const char*>(buffer.in) + part.begin, part.bytes);
        next += part.bytes;
      }
    }
  }

  void Unpack() {
    const char* next = slice_;
    for (const Buffer& buffer : buffers_) {
      const size_t bytes = PartOf(buffer, rank_).bytes;
      if (bytes > 0) std::memcpy(buffer.out, next, bytes);
      next += bytes;
    }
  }

  ScratchPool* pool_;
  std::vector<Buffer> buffers_;
  size_t element_;
  Participants participants_;
  int rank_;
  bool pack_;
  std::vector<char> packed_;
  char* slice_ = nullptr;  // this rank's reduced slice
  // One of them:
  std::optional<SliceReduction> slices_;
  std::unique_ptr<Collective> by_hosts_;
};

}  // namespace

std::unique_ptr<Collective> MakeReducescatter(Lane lane, ScratchPool* pool, const Request& request) {
  return std::make_unique<Reducescatter>(lane, pool, request);
}

}  // namespace tfddl
