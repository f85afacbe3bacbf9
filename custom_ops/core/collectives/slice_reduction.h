// The first half of an allreduce and the whole of a reducescatter: each rank owns a slice of a range, gets
// the others' parts of it in pieces, and reduces those in the order of the ranks.
#pragma once

#include <vector>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"
#include "core/collectives/pipeline.h"

namespace tfddl {

class SliceReduction {
 public:
  // `bounds` are offsets in bytes: rank r owns in[bounds[r]] up to in[bounds[r + 1]]. The reduced slice of
  // this rank goes to `out`, which may be where it lies in `in`. Uses the lane's first tag. `partly`: see
  // ReducePartly().
  SliceReduction(Lane lane, ScratchPool* pool, const Reduction& reduction, const char* in,
                 std::vector<size_t> bounds, char* out, bool partly = false);
  ~SliceReduction() { pool_->Give(std::move(scratch_)); }
  SliceReduction(const SliceReduction&) = delete;  // the pipelines refer to it
  SliceReduction& operator=(const SliceReduction&) = delete;

  void Poll();
  bool complete() const;
  // How many pieces of this rank's slice are reduced, and how many of `peer`'s slice have been sent.
  size_t reduced() const { return reduced_; }
  size_t sent(int peer) const {
    return peers_[static_cast<size_t>(peer < rank_ ? peer : peer - 1)].send.finished();
  }

 private:
  struct Peer {
    Pipeline send;          // my part of the peer's slice
    Pipeline contribution;  // its part of mine
    int rank;
  };

  size_t Begin(int rank) const { return bounds_[static_cast<size_t>(rank)]; }
  size_t Bytes(int rank) const { return Begin(rank + 1) - Begin(rank); }
  void ReduceArrived();

  ScratchPool* pool_;
  Reduction reduction_;
  const char* in_;
  std::vector<size_t> bounds_;
  char* out_;
  bool partly_;
  int rank_;
  size_t piece_bytes_;
  size_t pieces_;  // of my slice
  std::vector<char> scratch_;
  std::vector<Peer> peers_;
  size_t reduced_ = 0;
};

}  // namespace tfddl
