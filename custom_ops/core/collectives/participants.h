// Who takes part in a collective. Members that have joined (hvd.join()) do not: leaving a member out brings
// every reduction its neutral element, exactly and for any dtype and factor, and a gather no rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/request.h"
#include "transport/transport.h"

namespace tfddl {

// The members of a set that had not joined when a collective was agreed on, equal on all of them.
struct Participants {
  std::vector<int> ranks;    // in ascending order; at least one
  std::vector<int> members;  // of the set, by rank: their ranks in the job, for messages to people
  int divisor;               // of an Average
  // Counts the sets of ranks that have attended, alike on all members; 0: all of them. A set that comes back
  // has a new number, since not all of its ranks need have seen it go.
  int64_t episode = 0;

  int set_size() const { return static_cast<int>(members.size()); }
  bool complete() const { return ranks.size() == members.size(); }
  // A rank's place among those that attend, which is its rank in their transport; -1: it does not.
  int PlaceOf(int rank) const;
};

// Why `request` cannot run among those that attend; empty when it can. An agreed error: equal for equal
// signatures. A new kind of collective that cannot do without a member says so here.
std::string Objection(const Request& request, const Participants& participants);

// `transport` as it is among some ranks, in ascending order, of which this is one. It has to outlive the
// result.
std::unique_ptr<Transport> TransportAmong(Transport* transport, std::vector<int> ranks);

}  // namespace tfddl
