// A vote of the members of a process set: an allreduce of small records by recursive doubling, with
// point-to-point messages. State only, no I/O: the Voter moves the messages, and the state checker drives it
// directly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tfddl {

// The record of a member, and the outcome. Combine() is idempotent, commutative and associative, so the order
// of the messages cannot change the outcome.
struct VoteRecord {
  static constexpr uint32_t kNewNames = 1;  // OR: a member has names that are not in the plan
  static constexpr uint32_t kShutdown = 2;  // OR: a member leaves; `departing` is the lowest one
  static constexpr int32_t kNobody = INT32_MAX;

  uint32_t number = 0;  // of the vote, equal on all members; detects mixed-up messages
  uint32_t flags = 0;
  int32_t departing = kNobody;      // MIN
  std::vector<uint64_t> ready_all;  // AND, a bit per plan entry
  std::vector<uint64_t> ready_any;  // OR
  std::vector<uint64_t> same_all;   // AND: the member's signature is the plan's
  // A member that has joined has no requests: its bits in the three fields above are neutral.
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

// P is the largest power of two not above the number of members. In round k, members below P exchange records
// with member rank ^ 2^k. A member r >= P exchanges records with r - P on entry, and gets the outcome from it
// at the end. A member's first message tells its receiver that a vote is open.
class Vote {
 public:
  struct Step {
    int peer;
    bool send;
    bool receive;
    bool replace;  // the message is the outcome, not another record to combine
  };
  struct Message {
    int peer;
    VoteRecord record;
  };

  Vote(int rank, int size);

  // The messages of each vote, in order. Messages of one peer arrive in the order of the steps.
  const std::vector<Step>& steps() const { return steps_; }

  // A message for `step` arrived. Allowed before Enter(): then it is the notice that a vote is open.
  void Receive(size_t step, VoteRecord record);
  void Enter(VoteRecord mine);

  // The next message to send. Call it after Enter() and Receive() until it returns none.
  std::optional<Message> NextMessage();

  bool entered() const { return entered_; }
  bool noticed() const { return noticed_; }
  // The lowest member that leaves, by the messages so far.
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
