// What comes before the data of an allgather or alltoall. Only the receiver knows whether it can allocate its
// output, and only after it has learnt how many rows the others bring. So all say "allocated" before any data
// moves: all succeed or all fail. Where outputs were made for equal rows beforehand, and rows are equal, one
// exchange tells all of it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "core/collectives/collective.h"

namespace tfddl {

class RowAgreement {
 public:
  // `post` runs a function on the completion thread.
  RowAgreement(Lane lane, const Request& request, std::function<void(std::function<void()>)> post);

  // True when complete; the others hold then, and what follows them only if status() is ok.
  bool Poll();
  const Status& status() const { return status_; }

  // Rows of `buffer` between this rank and `place`, a place among those that attend, and the first of them in
  // this rank's input or output.
  int64_t sent(size_t buffer, size_t place) const { return Rows(offer_, buffer, place); }
  int64_t received(size_t buffer, size_t place) const { return Rows(offered_, buffer, place); }
  int64_t FirstSent(size_t place) const;
  int64_t FirstReceived(size_t buffer, size_t place) const;
  void* out(size_t buffer) const { return shared_->out[buffer]; }

  // Where this rank's rows belong in the output at `place`; null when it is out of reach. The one there knows
  // that by Reached().
  char* OutAt(size_t buffer, size_t place) const;
  // Whether the one at `place` reaches this rank's output.
  bool Reached(size_t buffer, size_t place) const;

 private:
  enum class Phase { kRows, kAllocate, kVerdicts };
  // Whether a rank has memory for the rows that come. A program compiled for other rows refuses them.
  enum : int { kNoMemory, kTaken, kRefused, kUndecided };
  static int VerdictOf(const Status& status);
  struct Shared {  // with the completion thread, which may outlive this object when the job fails
    std::atomic<int> verdict{kUndecided};
    std::vector<void*> out;
    Status status;
  };

  // Sends `bytes` at `mine`, and `stride` further on for each next rank; `all` receives the others', by rank.
  void Exchange(const void* mine, size_t stride, void* all, size_t bytes);
  bool Finished();
  // What this rank says of its rows, and of the outputs that it has made for equal ones; and what others say.
  void SendOffers(const Request& request);
  bool AllAsExpected() const;
  void UseExpected();
  void Allocate();
  void SendVerdicts();
  // Where an offer to a place, or from there, begins: whether there are expected outputs, the rows of each
  // buffer, and where each expected output lies in the arena.
  size_t Offer(size_t place) const { return place * (1 + 2 * buffers_); }
  int64_t Rows(const std::vector<uint64_t>& offers, size_t buffer, size_t place) const {
    return static_cast<int64_t>(offers[Offer(place) + 1 + buffer]);
  }
  size_t Verdict(size_t place) const { return place * (1 + buffers_); }
  void Judge();
  size_t Rank(size_t place) const { return static_cast<size_t>(participants_.ranks[place]); }

  Lane lane_;
  std::function<void(std::function<void()>)> post_;
  Participants participants_;
  size_t size_;  // of those that attend, and this rank's place among them
  size_t place_;
  size_t buffers_;
  std::vector<size_t> row_bytes_;  // of each buffer
  std::vector<int64_t> splits_;
  decltype(Request::allocate) allocate_;
  std::vector<void*> expected_;
  std::vector<uint64_t> offer_, offered_;  // to each place, and what each place has sent
  // For each place: whether this rank could allocate its outputs, and where the rows from there belong in
  // each, in its arena.
  std::vector<uint64_t> verdict_;
  std::vector<uint64_t> verdicts_;  // what each place says of itself
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Phase phase_ = Phase::kRows;
  Status status_;
  std::vector<Transport::Handle> handles_;
};

}  // namespace tfddl
