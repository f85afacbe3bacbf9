// The members of a process set agree on the collectives that run next, by name and without a coordinator.
// State only, no I/O, copyable: the Voter drives it, and the state checker explores it.
//
// The plan has an entry for each known name. It is equal on all members at every boundary, which is the end
// of a vote. The signature is an attribute of an entry and not its key: with the signature as key, one name
// with two signatures would wait in two entries forever.
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

// The outcome of a boundary for one name.
struct Decision {
  std::string name;
  uint64_t ticket = 0;  // the number of the collective, equal on all members; tags the data messages
  std::string error;    // empty: run it
};

// The end of a vote, equal on all members.
struct Boundary {
  std::vector<Decision> decisions;  // in the order in which the collectives start
  // The participants of these collectives: the members that had not joined.
  std::vector<int> active;
  AverageOver average_over = AverageOver::kSize;
  int last_joined = VoteRecord::kNobody;  // the last member to join; all had, so the join is over
  std::string join_error;                 // the joined members disagree, so the join is over
  bool closed = false;                    // a member left: pending names can never run
  int departing = VoteRecord::kNobody;
};

class Agreement {
 public:
  // `members` has the rank in the job of each member, for messages to people; empty: the index.
  Agreement(int rank, int size, size_t capacity, std::vector<int> members = {});

  // Makes `name`, which is not pending, pending on this member. `tickets` is the number of tickets (one for
  // each bucket) that it takes when it runs; equal on members with equal signatures.
  void Submit(const std::string& name, const std::string& signature, int tickets);
  // This member submits nothing from the next vote on, until a boundary at which all members have joined or
  // disagree. Only when nothing is pending.
  void Join(AverageOver over);
  bool joined() const { return joined_; }
  // Makes `name` not pending again. Only at a boundary, never inside a vote.
  void Withdraw(const std::string& name);
  void RequestShutdown();
  // A peer said, outside of the votes, that it leaves.
  void NoticeShutdown() { shutdown_noticed_ = true; }

  // Rule 1: enter with a fresh name or join. Also enter an open vote when a name is pending or this member
  // has joined. Else do not enter, except for a shutdown: no collective can run after it.
  bool ShouldEnter(const Vote& vote) const;
  VoteRecord Enter(const Vote& vote);

  // Whether all members have to send each other ExchangeRecord() after this outcome: names are new to the
  // plan, or signatures differ.
  bool NeedsExchange(const VoteRecord& outcome) const;
  std::string ExchangeRecord(const VoteRecord& outcome) const;

  // The boundary after a vote; `records` is indexed by rank, or empty when no exchange was needed. The names
  // of its decisions are not pending any more.
  Boundary Conclude(const VoteRecord& outcome, const std::vector<std::string>& records);

  bool closed() const { return closed_; }
  int departing() const { return departing_; }
  size_t plan_size() const { return plan_.size(); }

 private:
  struct Entry {
    std::string name;
    std::string signature;
    int tickets;
    uint64_t last_run = 0;  // boundary at which it last ran, for eviction
  };
  struct Pending {
    std::string signature;
    int tickets;
    bool voted;  // is in this member's record of the current vote
  };
  struct Announced {
    std::string name;
    std::vector<std::string> signatures;  // by member; empty: not submitted there
    int tickets;                          // of the first member
  };

  std::vector<Announced> Merge(const std::vector<std::string>& records) const;
  // Sets the boundary's fields about joins.
  void CountJoined(const VoteRecord& outcome, Boundary* boundary);
  void Decide(const Announced& announced, Boundary* boundary);
  // Gives the entry its ticket; it is not pending any more.
  Decision Schedule(Entry* entry);
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
  AverageOver average_over_ = AverageOver::kSize;  // of this member's join
  std::vector<uint64_t> had_joined_;               // at the last boundary, a bit for each member
  bool leaving_ = false;
  bool shutdown_noticed_ = false;
  bool closed_ = false;
  int departing_ = VoteRecord::kNobody;
  uint32_t vote_number_ = 0;
  uint64_t boundary_ = 0;
  uint64_t next_ticket_ = 0;
};

}  // namespace tfddl
