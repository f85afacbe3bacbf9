// A job of a few members, each with the engine's Agreement and Vote, and each action that can come next: the
// state space that agreement_states_test.cc explores. Each action checks the rules.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tests/agreement/agreement_job.h"

namespace tfddl_test {

using tfddl::Decision;

class World {
 public:
  explicit World(const Job* job) : job_(job), wire_(job->size * job->size) {
    for (int rank = 0; rank < job->size; ++rank) members_.emplace_back(rank, *job);
  }

  // All actions that can come next.
  std::vector<Action> Actions() const {
    std::vector<Action> actions;
    for (int rank = 0; rank < job_->size; ++rank) {
      const Member& member = members_[rank];
      for (int peer = 0; peer < job_->size && !member.at_boundary; ++peer) {
        const bool expected = member.received[peer] < StepsFrom(member.vote, peer).size();
        if (!expected || wire_[peer * job_->size + rank].empty()) continue;
        if (job_->prompt) return {{kDeliver, rank, peer}};
        actions.push_back({kDeliver, rank, peer});
      }
    }
    for (int rank = 0; rank < job_->size; ++rank) AddChoices(rank, &actions);
    return actions;
  }

  void Take(const Action& action) {
    Member& member = members_[action.rank];
    switch (action.kind) {
      case kSubmit:
        return Submit(&member, action.with, action.signature);
      case kEnter:
        return Enter(action.rank);
      case kDeliver:
        return Deliver(action.with, action.rank);
      case kConclude:
        return Conclude(&member);
      case kLeave:
        member.leaving = true;
        return member.agreement.RequestShutdown();
      case kNotice:
        member.noticed = true;
        return member.agreement.NoticeShutdown();
      case kJoin:
        member.joined = true;
        member.over = action.signature;
        return member.agreement.Join(static_cast<tfddl::AverageOver>(action.signature));
    }
  }

  // At the end: the only actions left are submits that no member has to make.
  void CheckEnd() const {
    for (const auto& wire : wire_) Require(wire.empty(), "a message was left over");
    for (const Member& member : members_) {
      Require(!member.vote.entered() && !member.at_boundary, "a member was left inside a vote");
      Require(!member.joined, "a join was left pending");
      Require(member.joins == members_[0].joins, "members saw different joins");
      Require(member.agreement.closed() == (job_->leavers != 0),
              "a member does not know whether the set is closed");
      Require(member.agreement.departing() == members_[0].agreement.departing(),
              "members name different leavers");
      for (int i = 0; i < job_->names; ++i) {
        Require(!member.names[i].pending, "a request was left pending");
        const std::string mine = Agreed(member.names[i]), first = Agreed(members_[0].names[i]);
        Require(SameOutcomes(mine, first), "members saw different outcomes: " + mine + " and " + first);
      }
    }
  }

  // Two worlds are equal when the test's state and the visible state of the classes are equal.
  uint64_t Fingerprint() const {
    uint64_t hash = Mix(outcome_, log_.size());
    for (const Member& member : members_) {
      hash = Mix(Mix(Mix(hash, HashOf(member.record.Encode())), member.plan), member.boundaries);
      hash = Mix(Mix(hash, HashOf(member.joins)),
                 member.disputes << 3 | member.over << 2 | member.joined | member.agreement.joined() << 1);
      hash = Mix(hash, member.at_boundary | member.vote.entered() << 1 | member.leaving << 2 |
                           member.noticed << 3 | member.agreement.ShouldEnter(member.vote) << 4);
      for (size_t count : member.received) hash = Mix(hash, count);
      for (bool ended : member.ended) hash = Mix(hash, ended);
      if (member.boundaries < log_.size()) hash = Mix(hash, HashOf(member.exchanged));
      for (const Name& name : member.names) {
        hash = Mix(Mix(hash, name.submitted << 2 | name.pending << 1 | name.voted), HashOf(name.outcomes));
        if (name.pending) hash = Mix(hash, HashOf(name.signature));
      }
    }
    return hash;
  }

 private:
  // Whether all members have finished the vote that `me` has finished, so that the records of its exchange
  // exist.
  bool RecordsAreThere(const Member& me) const {
    if (!me.agreement.NeedsExchange(me.outcome)) return true;
    for (const Member& member : members_) {
      if (member.boundaries == me.boundaries && !member.at_boundary) return false;
    }
    return true;
  }

  void AddChoices(int rank, std::vector<Action>* actions) const {
    const Member& member = members_[rank];
    bool idle = job_->rounds != 0;
    for (const Name& name : member.names) idle &= name.idle();
    if (idle && !Finished(member) && !member.joined && !member.agreement.closed()) {
      const bool any = job_->disputes && member.disputes == 0;
      for (int over = 0; over <= any; ++over) actions->push_back({kJoin, rank, 0, over});
    }
    for (int name = 0; name < job_->names; ++name) {
      if (member.joined || Finished(member)) break;
      const bool more = member.names[name].submitted < job_->instances && member.names[name].idle();
      if (!more || member.agreement.closed()) continue;
      for (int s = 0; s < job_->signatures; ++s) actions->push_back({kSubmit, rank, name, s});
    }
    if (!member.at_boundary && member.agreement.ShouldEnter(member.vote)) actions->push_back({kEnter, rank});
    if (member.at_boundary && RecordsAreThere(member)) actions->push_back({kConclude, rank});
    if ((job_->leavers >> rank & 1) && !member.leaving) actions->push_back({kLeave, rank});
    bool left = false;
    for (const Member& other : members_) left |= other.leaving;
    if (left && job_->notices && !member.noticed) actions->push_back({kNotice, rank});
  }

  bool Finished(const Member& member) const {
    return job_->rounds != 0 && static_cast<int>(member.joins.size()) >= job_->rounds;
  }

  void Submit(Member* member, int index, int signature) const {
    Name& name = member->names[index];
    if (member->ended[name.submitted++]) {
      name.outcomes += 'c';
      return;
    }
    name.pending = true;
    name.signature = SignatureOf(signature);
    member->agreement.Submit(NameOf(index), name.signature, TicketsOf(index, name.signature));
  }

  void Enter(int rank) {
    Member& member = members_[rank];
    bool something = job_->leavers != 0 || member.agreement.joined();
    for (Name& name : member.names) something |= name.voted = name.pending;
    Require(something, "a member entered a vote with nothing pending");
    member.record = member.agreement.Enter(member.vote);
    member.vote.Enter(member.record);
    Flush(rank);
  }

  void Deliver(int from, int to) {
    Member& member = members_[to];
    auto& wire = wire_[from * job_->size + to];
    const size_t step = StepsFrom(member.vote, from)[member.received[from]++];
    member.vote.Receive(step, VoteRecord::Decode(wire.front()));
    wire.pop_front();
    Flush(to);
  }

  void Flush(int rank) {
    Member& member = members_[rank];
    while (auto message = member.vote.NextMessage()) {
      wire_[rank * job_->size + message->peer].push_back(message->record.Encode());
    }
    if (!member.vote.complete()) return;
    member.outcome = member.vote.Take();
    member.exchanged = member.agreement.ExchangeRecord(member.outcome);
    member.at_boundary = true;
    for (size_t& count : member.received) count = 0;
  }

  void Conclude(Member* member) {
    std::vector<std::string> records;
    if (member->agreement.NeedsExchange(member->outcome)) {
      for (const Member& other : members_) records.push_back(other.exchanged);
    }
    const Boundary boundary = member->agreement.Conclude(member->outcome, records);
    member->at_boundary = false;
    if (member->boundaries++ == log_.size()) {
      CheckDecisions(boundary);
      log_.push_back(Describe(*member, boundary));
      outcome_ = HashOf(Combined(members_).Encode());
    }
    Require(HashOf(member->outcome.Encode()) == outcome_,
            "the outcome does not follow from the members' records");
    Require(log_[member->boundaries - 1] == Describe(*member, boundary), "members decided differently");
    for (const Decision& decision : boundary.decisions) Settle(member, decision);
    EndJoin(member, boundary);
    for (int i = 0; i < job_->names; ++i) Drop(member, i, boundary.closed);
    member->record = VoteRecord();
    LookAtPlan(member);
  }

  // Checks the decisions of the first member at a boundary against the submits of all members.
  void CheckDecisions(const Boundary& boundary) {
    const int joins = job_->disputes ? job_->rounds + job_->size : job_->rounds;
    const int requests = job_->names * job_->instances + joins;
    const int votes = job_->size * requests + (job_->leavers ? 2 : 0);
    Require(static_cast<int>(log_.size()) < votes, "more votes than submits can open");
    joined_ = CheckJoins(members_, boundary, joined_);
    for (const Decision& decision : boundary.decisions) {
      if (!CheckDecision(members_, boundary, decision)) continue;
      Require(decision.ticket >= next_ticket_, decision.name + " shares a ticket");
      const int index = IndexOf(decision.name);
      const Name& name = members_[boundary.active[0]].names[index];
      next_ticket_ = decision.ticket + static_cast<uint64_t>(TicketsOf(index, name.signature));
    }
  }

  void EndJoin(Member* member, const Boundary& boundary) const {
    const bool mine = member->record.joined[0] != 0;
    const bool ends = boundary.last_joined != VoteRecord::kNobody || !boundary.join_error.empty();
    Require(member->agreement.joined() == (member->joined && !(mine && ends)),
            "a member mistakes its own join");
    if (boundary.closed || (mine && ends)) {
      member->joined = false;
      member->over = 0;
    }
    if (!mine || !ends) return;
    if (boundary.join_error.empty()) {
      member->joins += static_cast<char>('0' + boundary.last_joined);
    } else {
      ++member->disputes;
    }
  }

  void Settle(Member* member, const Decision& decision) const {
    const int index = IndexOf(decision.name);
    Name& name = member->names[index];
    if (member->record.joined[0]) {
      Require(!name.pending, decision.name + " is pending on a member that has joined");
      ++name.submitted;
      name.outcomes += 's';
      if (decision.error.empty()) member->touched[index] = member->boundaries;
      return;
    }
    name.pending = name.voted = false;
    const bool ran = decision.error.empty();
    name.outcomes += ran ? 'r' : 'e';
    if (ran) member->touched[index] = member->boundaries;
    if (!ran && job_->steps) member->ended[name.submitted - 1] = true;
  }

  // Withdraws waiting names when their step has ended, and all names when the set is closed.
  static void Drop(Member* member, int index, bool closed) {
    Name& name = member->names[index];
    if (!name.pending || !(closed || member->ended[name.submitted - 1])) return;
    member->agreement.Withdraw(NameOf(index));
    name.pending = name.voted = false;
    name.outcomes += closed ? 'l' : 'c';
  }

  // Hashes index and signature of each name in the plan, which a copy shows when the name is submitted to it.
  void LookAtPlan(Member* member) const {
    if (member->agreement.joined()) return;  // its record does not show the plan; the other plans are equal
    member->plan = 0;
    for (int index = 0; index < job_->names; ++index) {
      const Name& name = member->names[index];
      bool present = false;
      for (int s = 0; s < job_->signatures; ++s) {
        Agreement copy = member->agreement;
        for (int other = 0; other < job_->names; ++other) copy.Withdraw(NameOf(other));
        copy.Submit(NameOf(index), SignatureOf(s), 1);
        const VoteRecord record = copy.Enter(Vote(0, job_->size));
        present = (record.flags & VoteRecord::kNewNames) == 0;
        const bool same = record.same_all.size() && record.same_all[0] != 0;
        const bool just_ran = !name.outcomes.empty() && member->touched[index] == member->boundaries;
        Require(!just_ran || name.outcomes.back() == 's' || same == (name.signature == SignatureOf(s)),
                "the plan did not learn a signature");
        member->plan = Mix(member->plan, HashOf(record.Encode()));
      }
      Require(present || !name.voted, "the plan lost a name that a member has ready");
      size_t& touched = member->touched[index];
      touched = !present ? 0 : touched == 0 ? member->boundaries : touched;
      member->plan = Mix(member->plan, touched);
    }
  }

  const Job* job_;
  std::vector<Member> members_;
  std::vector<std::deque<std::string>> wire_;  // [from * size + to]: one FIFO per ordered pair
  std::vector<std::string> log_;               // the decisions of each boundary
  uint64_t joined_ = 0;                        // at the last boundary, a bit per member
  uint64_t outcome_ = 0;                       // of the last vote, for the fingerprint
  uint64_t next_ticket_ = 0;
};

}  // namespace tfddl_test
