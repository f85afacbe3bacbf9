// A job of agreement_states_test.cc: its size, its members and the actions that they can take.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/agreement/agreement.h"
#include "core/agreement/vote.h"

namespace tfddl_test {

using tfddl::Agreement;
using tfddl::Boundary;
using tfddl::Vote;
using tfddl::VoteRecord;

struct Job {
  std::string label;
  int size;
  int names;
  int instances;          // of each name; the next may come as soon as the last is done on that member
  int signatures;         // a member submits with any of them
  size_t capacity;        // of the plan
  bool steps = false;     // instance k of all names belongs to step k, which an agreed error ends
  bool prompt = false;    // messages arrive at once: a late action stands for a late message
  int leavers = 0;        // a bit per member that may ask to leave, at any time; then no member has to submit
  bool notices = true;    // members that leave also tell the others outside of the votes
  int rounds = 0;         // each member joins so many times, whenever nothing of its own is pending
  bool disputes = false;  // a member joins with any divisor, until there has been a dispute about it

  Job Steps() const { return With(&Job::steps, true); }
  Job Prompt() const { return With(&Job::prompt, true); }
  Job Leavers(int members) const { return With(&Job::leavers, members); }
  Job Rounds(int count) const { return With(&Job::rounds, count); }
  Job Disputes() const { return With(&Job::disputes, true); }
  Job VotesOnly() const { return With(&Job::notices, false); }

  template <typename T>
  Job With(T Job::* field, T value) const {
    Job job = *this;
    job.*field = value;
    return job;
  }
};

enum Kind { kSubmit, kEnter, kDeliver, kConclude, kLeave, kNotice, kJoin };

struct Action {
  Kind kind;
  int rank;
  int with = 0;  // the name, or the sender
  int signature = 0;
};

inline void Require(bool holds, const std::string& rule) {
  if (!holds) throw std::runtime_error(rule);
}

inline uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ (value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2))) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

inline uint64_t HashOf(const std::string& text) { return std::hash<std::string>()(text); }
inline std::string NameOf(int name) { return "name" + std::to_string(name); }
inline int IndexOf(const std::string& name) { return name.back() - '0'; }
inline std::string SignatureOf(int signature) { return "float32 [" + std::to_string(3 + signature) + "]"; }
inline int TicketsOf(int name, const std::string& signature) {
  return 1 + name + (signature == SignatureOf(0) ? 0 : 1);
}

struct Name {
  int submitted = 0;
  bool pending = false;
  bool voted = false;  // pending when its member entered the vote
  std::string signature;
  std::string outcomes;  // of its instances: r(an), e(rror), c(ancelled with its step), l(eft: the set was
                         // closed), s(kipped: ran or failed without this member, which had joined)
  bool idle() const { return !pending && submitted == static_cast<int>(outcomes.size()); }
};

struct Member {
  Member(int rank, const Job& job)
      : agreement(rank, job.size, job.capacity),
        vote(rank, job.size),
        names(job.names),
        received(job.size),
        ended(job.instances),
        touched(job.names) {}

  Agreement agreement;
  Vote vote;
  std::vector<Name> names;
  std::vector<size_t> received;  // messages of the current vote, by peer
  std::vector<bool> ended;       // steps
  bool leaving = false, noticed = false;
  bool joined = false;
  int over = 0;  // the divisor that it joined with
  int disputes = 0;
  std::string joins;  // the last member of each join
  size_t boundaries = 0;
  VoteRecord record;         // its record of the current vote
  bool at_boundary = false;  // a vote is over and its outcome not yet applied
  VoteRecord outcome;
  std::string exchanged;  // its record of the exchange at this boundary

  // For the fingerprint alone.
  uint64_t plan = 0;
  std::vector<size_t> touched;  // the boundary at which a name came into the plan or last ran
};

// The steps at which a member receives from `peer`.
inline std::vector<size_t> StepsFrom(const Vote& vote, int peer) {
  std::vector<size_t> found;
  for (size_t i = 0; i < vote.steps().size(); ++i) {
    if (vote.steps()[i].peer == peer && vote.steps()[i].receive) found.push_back(i);
  }
  return found;
}

inline std::string Agreed(const Name& name) {
  return name.outcomes.substr(0, name.outcomes.find_last_not_of('l') + 1);
}

inline bool SameOutcomes(const std::string& a, const std::string& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) same = a[i] == b[i] || a[i] == 's' || b[i] == 's';
  return same;
}

// The correct outcome of a vote of all members.
inline VoteRecord Combined(const std::vector<Member>& members) {
  VoteRecord all = members[0].record;
  for (const Member& member : members) {
    const VoteRecord& one = member.record;
    all.flags |= one.flags;
    if (one.departing < all.departing) all.departing = one.departing;
    for (size_t i = 0; i < all.ready_all.size(); ++i) {
      all.ready_all[i] &= one.ready_all[i];
      all.ready_any[i] |= one.ready_any[i];
      all.same_all[i] &= one.same_all[i];
    }
    for (size_t i = 0; i < all.joined.size(); ++i) {
      all.joined[i] |= one.joined[i];
      all.over_active[i] |= one.over_active[i];
    }
  }
  return all;
}

inline std::string Describe(const Member& member, const Boundary& boundary) {
  std::string text = std::to_string(member.agreement.plan_size()) + ", " +
                     std::to_string(boundary.departing) + ", " + std::to_string(boundary.last_joined) + ", " +
                     boundary.join_error + " " + tfddl::NameOf(boundary.average_over);
  for (int rank : boundary.active) text += " " + std::to_string(rank);
  for (const auto& d : boundary.decisions)
    text += " " + d.name + "@" + std::to_string(d.ticket) + " " + d.error;
  return text;
}

// The participants are the members that had not joined when they entered the vote. A join ends when all have
// joined, or disagree. `before` has a bit for each member that had joined at the boundary before; returns the
// bits of this one.
inline uint64_t CheckJoins(const std::vector<Member>& members, const Boundary& boundary, uint64_t before) {
  std::vector<int> active;
  uint64_t over = 0;
  uint64_t joined = 0;
  for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) {
    const VoteRecord& record = members[rank].record;
    if (!(record.joined[0] >> rank & 1)) {
      active.push_back(rank);
      continue;
    }
    joined |= uint64_t{1} << rank;
    over |= record.over_active[0] ? 2 : 1;
  }
  Require(boundary.active == active, "the participants are not the members that have not joined");
  Require((over == 3) == !boundary.join_error.empty(), "a dispute about the divisor was not seen");
  Require((boundary.average_over == tfddl::AverageOver::kActive) == (over >= 2),
          "another divisor was asked for");
  const int last = boundary.last_joined;
  Require((last != VoteRecord::kNobody) == (active.empty() && over != 3), "a join ended too early or late");
  Require(last == VoteRecord::kNobody || !(before >> last & 1), "a rank that had joined before is the last");
  return active.empty() || over == 3 ? 0 : joined;
}

// Checks the decision for one name against the members' submits; returns whether the name runs.
inline bool CheckDecision(const std::vector<Member>& members, const Boundary& boundary,
                          const tfddl::Decision& decision) {
  const int index = IndexOf(decision.name);
  Require(!boundary.active.empty() && boundary.join_error.empty(), decision.name + " was decided by nobody");
  const Name& first = members[boundary.active[0]].names[index];
  bool equal = true;
  for (int rank : boundary.active) {
    const Name& name = members[rank].names[index];
    Require(name.pending, decision.name + " was decided before all had submitted it");
    Require(name.submitted == first.submitted, decision.name + ": two instances were taken for one");
    equal &= name.signature == first.signature;
  }
  Require(equal || !decision.error.empty(), decision.name + " runs with unequal signatures");
  Require(!equal || decision.error.empty(), decision.name + " fails with equal signatures");
  return equal;
}

}  // namespace tfddl_test
