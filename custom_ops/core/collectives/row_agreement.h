// The agreement on rows and outputs before the data of an allgather or alltoall moves.
//
// 1. The members exchange their numbers of rows (offers).
// 2. Each member allocates its outputs.
// 3. The members exchange whether they could (verdicts), so that all succeed or all fail.
//
// If all members have outputs for equal rows already (Request::expected), and the rows are equal, step 1 is
// enough.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "core/collectives/collective.h"

namespace tfddl {

class RowAgreement {
 public:
  RowAgreement(Lane lane, const Request& request, Post post);

  // True once complete. The members below, except status(), are valid only if status() is ok.
  bool Poll();
  const Status& status() const { return status_; }

  // The rows of `buffer` that this rank sends to participant `index` or receives from it, and the first of
  // them in this rank's input or output.
  int64_t sent(size_t buffer, size_t index) const { return Rows(offer_, buffer, index); }
  int64_t received(size_t buffer, size_t index) const { return Rows(offered_, buffer, index); }
  int64_t FirstSent(size_t index) const;
  int64_t FirstReceived(size_t buffer, size_t index) const;
  void* out(size_t buffer) const { return shared_->out[buffer]; }

  // The address of this rank's rows in the output of participant `index`, or in an allgather that of the rows
  // of `origin`; null if that output is not mapped.
  char* OutAt(size_t buffer, size_t index, size_t origin) const;
  // Whether participant `index` gets an address from OutAt() for this rank's output.
  bool Reached(size_t buffer, size_t index) const;

 private:
  enum class Phase { kRows, kAllocate, kVerdicts };
  // Whether a rank could allocate its outputs. A program that was compiled for other rows refuses.
  enum : int { kNoMemory, kTaken, kRefused, kUndecided };
  static int VerdictOf(const Status& status);
  struct Shared {  // with the thread of `allocate`, which may outlive this object if the job fails
    std::atomic<int> verdict{kUndecided};
    std::vector<void*> out;
    Status status;
  };

  // Sends `bytes` bytes from mine + i * stride to each participant i, and receives as many into
  // all + i * bytes.
  void Exchange(const void* mine, size_t stride, void* all, size_t bytes);
  bool Finished();
  void SendOffers(const Request& request);
  bool AllAsExpected() const;
  void UseExpected();
  void Allocate();
  void SendVerdicts();
  // The begin of the offer to or from a participant: whether there are expected outputs (1 or 0), the rows of
  // each buffer, and the offset of each expected output in the arena.
  size_t Offer(size_t index) const { return index * (1 + 2 * buffers_); }
  int64_t Rows(const std::vector<uint64_t>& offers, size_t buffer, size_t index) const {
    return static_cast<int64_t>(offers[Offer(index) + 1 + buffer]);
  }
  // The begin of the verdict to or from a participant: kNoMemory, kTaken or kRefused, and for each output the
  // offset, in the sender's arena, of the
  // receiver's rows.
  size_t Verdict(size_t index) const { return index * (1 + buffers_); }
  void Judge();
  size_t Rank(size_t index) const { return static_cast<size_t>(participants_.ranks[index]); }

  Lane lane_;
  Post post_;
  Participants participants_;
  size_t size_;   // the number of participants
  size_t index_;  // of this rank
  size_t buffers_;
  std::vector<size_t> row_bytes_;  // of each buffer
  std::vector<int64_t> splits_;
  decltype(Request::allocate) allocate_;
  std::vector<void*> expected_;
  std::vector<uint64_t> offer_, offered_;     // sent and received, for all participants
  std::vector<uint64_t> verdict_, verdicts_;  // sent and received, for all participants
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Phase phase_ = Phase::kRows;
  Status status_;
  std::vector<Transport::Handle> handles_;
};

}  // namespace tfddl
