// What a job of agreement_states_test.cc consists of: its size, its members and what they can do next.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/agreement.h"
#include "core/vote.h"

namespace tfddl_test {

using tfddl::Agreement;
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
  bool prompt = false;    // messages arrive at once: a member that acts late stands for one that hears late
  int leavers = 0;        // a bit per member that asks to leave, at any time; then nobody has to submit
  bool notices = true;    // leavers also tell the others outside of the votes
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

inline void Require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
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
  int over = 0;  // what it joined with
  int disputes = 0;
  std::string joins;  // who was the last, each time
  size_t boundaries = 0;
  VoteRecord record;         // what it put into the vote that it is in
  bool at_boundary = false;  // a vote is over and its outcome not yet applied
  VoteRecord outcome;
  std::string exchanged;  // what it sends to all at that boundary

  // For the fingerprint alone.
  uint64_t plan = 0;
  std::vector<size_t> touched;  // the boundary at which a name came into the plan or last ran
};

}  // namespace tfddl_test
