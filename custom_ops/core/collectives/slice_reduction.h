// Reduce-scatter over contiguous slices: each rank owns a slice of a range, receives it from all ranks in
// pieces, and reduces it in the order of the ranks. Also the first half of an allreduce.
#pragma once

#include <vector>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"
#include "core/collectives/pipeline.h"

namespace tfddl {

// The reduction of a request, over all participants.
inline Reduction ReductionOf(const Lane& lane, const Request& request) {
  return {request.dtype,          request.op,
          request.prescale,       request.postscale,
          lane.transport->size(), lane.participants->divisor};
}

class SliceReduction {
 public:
  // Rank r owns the bytes from bounds[r] to bounds[r + 1]. The reduced slice of this rank goes to `out`,
  // which may be its own slice of `in`. Uses the lane's first tag. `partly`: `out` gets accumulators
  // (ReducePartly()).
  SliceReduction(Lane lane, ScratchPool* pool, const Reduction& reduction, const char* in,
                 std::vector<size_t> bounds, char* out, bool partly = false);
  ~SliceReduction() { pool_->Give(std::move(scratch_)); }
  SliceReduction(const SliceReduction&) = delete;  // the pipelines refer to it
  SliceReduction& operator=(const SliceReduction&) = delete;

  void Poll();
  bool complete() const;
  // The number of pieces of this rank's slice that are reduced.
  size_t reduced() const { return reduced_; }
  // The number of pieces of `peer`'s slice that are sent.
  size_t sent(int peer) const {
    return peers_[static_cast<size_t>(peer < rank_ ? peer : peer - 1)].send.finished();
  }

 private:
  struct Peer {
    Pipeline send;          // this rank's input for the peer's slice
    Pipeline contribution;  // the peer's input for this rank's slice
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
  size_t pieces_;  // of this rank's slice
  std::vector<char> scratch_;
  std::vector<Peer> peers_;
  size_t reduced_ = 0;
};

}  // namespace tfddl
