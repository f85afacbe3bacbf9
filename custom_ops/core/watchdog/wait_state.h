// What each rank waits for, as the watchdogs tell each other, and what can be read from all of it together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/set_directory.h"
#include "core/engine/live_request.h"

namespace tfddl {

struct WaitState {
  std::vector<LiveRequest> waiting;  // the longest first
  size_t left_out = 0;               // more of them, for which the message had no room
  int64_t still_us = 0;              // since anything moved on this rank: a submit, a vote, a transfer
  std::string last;                  // its last collective, in words
  bool leaving = false;              // in hvd.shutdown()

  bool Has(const std::string& key, int set = 0) const;
  bool Joined(int set) const;
  // At most `limit` bytes.
  std::string Encode(size_t limit) const;
  static WaitState Decode(const std::string& bytes);
};

// By rank; empty: it did not answer.
using WaitStates = std::vector<std::optional<WaitState>>;

// The ranks that cannot go on unless one of their other threads submits, in ascending order: `rank`, and all
// others in the sets that these wait in. Empty when one of them does not wait, something has moved on one
// within `still_us`, or a collective has been submitted by all members of its set.
std::vector<int> Stuck(const WaitStates& ranks, int rank, int64_t still_us, const SetDirectory& sets = {});

// Whether one of the ranks `of` waits with a note.
bool HasNote(const WaitStates& ranks, const std::vector<int>& of);

// One line: who waits for what, and how long. Ranks that wait for the same are named together.
std::string Describe(const WaitStates& ranks, const SetDirectory& sets = {});

// The members of the set that have not submitted `key`, those that are silent, and those that need not,
// because they have joined; empty when all that need to have it.
std::string DescribeMissing(const WaitStates& ranks, const std::string& key, int set = 0,
                            const SetDirectory& sets = {});

// "'key'", and the set where that is not all ranks: "'key' of process set 1 [0, 2]".
std::string DescribeKey(const std::string& key, int set, const SetDirectory& sets);

}  // namespace tfddl
