#include "core/collectives/gathered_allreduce.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace tfddl {
namespace {

class GatheredAllreduce : public Collective {
 public:
  GatheredAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction, Range range)
      : lane_(lane),
        pool_(pool),
        reduction_(reduction),
        range_(range),
        bytes_(static_cast<size_t>(range.count) * SizeOf(reduction.dtype)),
        blocks_(pool->Take(bytes_ * static_cast<size_t>(reduction.size))) {
    if (bytes_ > 0) std::memcpy(blocks_.data(), range.in, bytes_);
  }
  ~GatheredAllreduce() override { pool_->Give(std::move(blocks_)); }

  bool Poll() override {
    while (have_ < reduction_.size) {
      if (handles_.empty()) StartRound();
      while (!handles_.empty()) {
        if (!lane_.transport->Test(handles_.back())) return false;
        handles_.pop_back();
      }
      have_ += RoundBlocks();
    }
    std::vector<const void*> sources;
    for (int peer = 0; peer < reduction_.size; ++peer) sources.push_back(Block(Wrapped(peer - Rank())));
    Reduce(reduction_, sources.data(), range_.out, range_.count);
    return true;
  }

 private:
  // This rank has the data of `have_` ranks from its own one on, and so does each other rank.
  void StartRound() {
    const size_t bytes = static_cast<size_t>(RoundBlocks()) * bytes_;
    const int from = Wrapped(Rank() + have_), to = Wrapped(Rank() - have_);
    handles_.push_back(lane_.transport->Receive(from, lane_.tag, Block(have_), bytes));
    handles_.push_back(lane_.transport->Send(to, lane_.tag, Block(0), bytes));
  }

  int Rank() const { return lane_.transport->rank(); }
  int Wrapped(int rank) const { return (rank + reduction_.size) % reduction_.size; }
  int RoundBlocks() const { return std::min(have_, reduction_.size - have_); }
  char* Block(int number) { return blocks_.data() + static_cast<size_t>(number) * bytes_; }

  Lane lane_;
  ScratchPool* pool_;
  Reduction reduction_;
  Range range_;
  size_t bytes_;
  std::vector<char> blocks_;  // block i is of the rank that is i after this one
  int have_ = 1;
  std::vector<Transport::Handle> handles_;
};

}  // namespace

std::unique_ptr<Collective> MakeGatheredAllreduce(Lane lane, ScratchPool* pool, const Reduction& reduction,
                                                  Range range) {
  return std::make_unique<GatheredAllreduce>(lane, pool, reduction, range);
}

}  // namespace tfddl
