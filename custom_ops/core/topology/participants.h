// The participants of a collective: the members that have not joined (hvd.join()). A joined member
// contributes nothing to a reduction and no rows to a gather.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/request.h"
#include "transport/transport.h"

namespace tfddl {

// The members of a process set that had not joined when a collective was agreed on. The same on all of them.
struct Participants {
  std::vector<int> ranks;    // of the participants in the set, in ascending order; at least one
  std::vector<int> members;  // for each rank of the set, its rank in the job, for messages
  int divisor;               // of an Average
  // The number of this group of participants, the same on all members; 0: all members take part. The number
  // is new after each change, even if the same ranks took part before.
  int64_t generation = 0;

  int set_size() const { return static_cast<int>(members.size()); }
  bool complete() const { return ranks.size() == members.size(); }
  // The index of a rank among the participants, which is its rank in their transport; -1: no participant.
  int IndexOf(int rank) const;
};

// The reason why `request` cannot run among the participants; empty if it can. The same for equal signatures,
// so all ranks report the same error.
std::string Objection(const Request& request, const Participants& participants);

// A transport among some ranks of `transport`, in ascending order and with this rank. `transport` must
// outlive the result.
std::unique_ptr<Transport> TransportAmong(Transport* transport, std::vector<int> ranks);

}  // namespace tfddl
