// How the members of a process set agree on what runs next, by name, with no coordinator.
// Pure state, no I/O, copyable: the engine drives it, the state checker explores it.
//
// The plan maps names to entries and is equal on all members at every vote boundary. The signature is
// an attribute of an entry, not its key: keyed by signature, one name with two signatures would wait
// in two entries for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "core/agreement/vote.h"

namespace tfddl {

// What a boundary decided for one name, in the order that all members share.
struct Decision {
  std::string name;
  uint64_t ticket = 0;  // counted alike by all members; tags the data messages
  std::string error;    // empty: run it
};

struct Boundary {
  std::vector<Decision> decisions;
  // Who takes part in what runs: the members that had not joined.
  std::vector<int> active;
  AverageOver average_over = AverageOver::kSize;
  int last_joined = VoteRecord::kNobody;  // all have joined, this one last: nobody is joined any more
  std::string join_error;                 // those that had joined disagree: they are not joined any more
  bool closed = false;                    // somebody left: what is still pending can never run
  int departing = VoteRecord::kNobody;
};

class Agreement {
 public:
  // `members` has the number by which messages call each rank; empty: its own.
  Agreement(int rank, int size, size_t capacity, std::vector<int> members = {});

  // A request for `name`, which is not pending, was submitted here. `tickets` is how many tickets
  // (data transfers) it takes when it runs; equal on all members that have equal signatures.
  void Submit(const std::string& name, const std::string& signature, int tickets);
  // From the next vote on this rank has no requests, until a boundary at which all members have joined or
  // disagree. Only when nothing is pending.
  void Join(AverageOver over);
  bool joined() const { return joined_; }
  // Takes a pending request back. Only at a boundary, never inside a vote.
  void Withdraw(const std::string& name);
  void RequestShutdown();
  // A peer said, outside of the votes, that it is about to leave.
  void NoticeShutdown() { shutdown_noticed_ = true; }

  // Rule 1: enter with something fresh, or when a vote is open and something is pending or this rank has
  // joined; never with nothing, except that nobody can run anything after a shutdown, so a vote about one is
  // answered.
  bool ShouldEnter(const Vote& vote) const;
  VoteRecord Enter(const Vote& vote);

  // True when the outcome asks all members to send each other ExchangeRecord().
  bool NeedsExchange(const VoteRecord& outcome) const;
  std::string ExchangeRecord(const VoteRecord& outcome) const;

  // The boundary after a vote; `records` is indexed by rank, or empty when no exchange was needed.
  // What it decides is no longer pending when it returns.
  Boundary Conclude(const VoteRecord& outcome, const std::vector<std::string>& records);

  bool closed() const { return closed_; }
  int departing() const { return departing_; }
  size_t plan_size() const { return plan_.size(); }
  bool IsPending(const std::string& name) const { return pending_.count(name) != 0; }

 private:
  struct Entry {
    std::string name;
    std::string signature;
    int tickets;            // what a member that has joined counts, too
    uint64_t last_run = 0;  // boundary at which it last ran, for eviction
  };
  struct Pending {
    std::string signature;
    int tickets;
    bool voted;  // part of the record of the vote we are in
  };
  struct Announced {
    std::string name;
    std::vector<std::string> signatures;  // by rank; empty: not submitted there
    int tickets;                          // of the first
  };

  std::vector<Announced> Merge(const std::vector<std::string>& records) const;
  // Who has joined, and what follows from that.
  void Attend(const VoteRecord& outcome, Boundary* boundary);
  void Decide(const Announced& announced, Boundary* boundary);
  // Numbers the run of a name that all active members have, and takes it off the pending ones.
  Decision Run(Entry* entry);
  size_t Append(const std::string& name, const std::string& signature, int tickets);
  void Evict(const VoteRecord& outcome);

  int rank_;
  int size_;
  size_t capacity_;
  std::vector<int> members_;
  std::vector<Entry> plan_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, Pending> pending_;
  bool fresh_ = false;
  bool joined_ = false;
  AverageOver average_over_ = AverageOver::kSize;  // asked for here
  std::vector<uint64_t> had_joined_;               // at the last boundary, agreed
  bool leaving_ = false;
  bool shutdown_noticed_ = false;
  bool closed_ = false;
  int departing_ = VoteRecord::kNobody;
  uint32_t vote_number_ = 0;
  uint64_t boundary_ = 0;
  uint64_t next_ticket_ = 0;
};

}  // namespace tfddl
