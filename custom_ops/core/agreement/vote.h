// One vote over the members of a process set: recursive doubling over point-to-point messages.
// Pure state, no I/O: the engine moves the messages, tests and the state checker drive it directly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tfddl {

// What a member brings to a vote and what all take out of it. Combining is idempotent, commutative
// and associative, so the order in which messages meet cannot change the outcome.
struct VoteRecord {
  static constexpr uint32_t kNewNames = 1;  // OR: somebody has names that are not in the plan
  static constexpr uint32_t kShutdown = 2;  // OR: somebody leaves; `departing` is the lowest such rank
  static constexpr int32_t kNobody = INT32_MAX;

  uint32_t number = 0;  // of the vote, counted alike by all; guards against mixed-up messages
  uint32_t flags = 0;
  int32_t departing = kNobody;      // MIN
  std::vector<uint64_t> ready_all;  // AND, a bit per plan entry
  std::vector<uint64_t> ready_any;  // OR
  std::vector<uint64_t> same_all;   // AND: the member's signature is the plan's
  // A member that has joined has no more requests: to the three above it brings what changes nothing.
  std::vector<uint64_t> joined;       // OR, a bit per member
  std::vector<uint64_t> over_active;  // OR: it has joined and asked for AverageOver::kActive

  VoteRecord(size_t entries, size_t members);
  VoteRecord() : VoteRecord(0, 0) {}
  void Combine(const VoteRecord& other);

  // The length of a record follows from the size of the plan, which is equal on all members.
  static size_t EncodedSize(size_t entries, size_t members);
  std::string Encode() const;
  static VoteRecord Decode(const std::string& bytes);
};

// Members 0..P-1 (P the largest power of two not above N) exchange records with partner rank^2^k in
// round k. A member r >= P is served by r-P: they swap records on entry, each side's message being
// the other's notice that a vote is open, and r-P sends it the outcome at the end.
class Vote {
 public:
  struct Step {
    int peer;
    bool send;
    bool receive;
    bool replace;  // what comes is the outcome itself, not one more record
  };
  struct Message {
    int peer;
    VoteRecord record;
  };

  Vote(int rank, int size);

  // The messages of each vote, in order. Messages of one peer arrive in the order of its steps.
  const std::vector<Step>& steps() const { return steps_; }

  // A message for `step` came in; allowed before Enter(): it is the notice that a vote is open.
  void Receive(size_t step, VoteRecord record);
  void Enter(VoteRecord mine);

  // The next message to send, if one is due. Call after Enter() and Receive() until it has none.
  std::optional<Message> NextMessage();

  bool entered() const { return entered_; }
  bool noticed() const { return noticed_; }
  // The lowest rank that the messages so far say is leaving.
  int32_t noticed_departing() const { return noticed_departing_; }
  bool complete() const { return entered_ && current_ == steps_.size(); }

  // The outcome; the object is then ready for the next vote.
  VoteRecord Take();

 private:
  void Advance();

  std::vector<Step> steps_;
  std::vector<std::optional<VoteRecord>> inbox_;  // a slot per step
  std::vector<Message> outbox_;
  size_t current_ = 0;
  bool sent_ = false;  // the message of the current step
  bool entered_ = false;
  bool noticed_ = false;
  int32_t noticed_departing_ = VoteRecord::kNobody;
  VoteRecord record_;
};

}  // namespace tfddl
