// The wait state of a rank (which requests wait, since when), as the watchdogs tell each other, and
// conclusions from the wait states of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/set_directory.h"
#include "core/engine/live_requests.h"

namespace tfddl {

struct WaitState {
  std::vector<LiveRequest> waiting;  // the longest first
  size_t left_out = 0;               // further requests, for which the message had no room
  int64_t idle_us = 0;               // since the last progress on this rank: a submit, a vote, a transfer
  std::string last;                  // its last collective, in words
  bool leaving = false;              // in hvd.shutdown()

  bool Has(const std::string& key, int set = 0) const;  // whether this request waits
  bool Joined(int set) const;
  // At most `limit` bytes.
  std::string Encode(size_t limit) const;
  static WaitState Decode(const std::string& bytes);
};

// By rank; empty: the rank did not answer.
using WaitStates = std::vector<std::optional<WaitState>>;

// The ranks that cannot go on unless one of their other threads submits something, in ascending order:
// `rank`, and all members of the sets in which these ranks wait. Empty when one of the ranks does not wait or
// made progress within `idle_us`, or when all members of a set have submitted a collective.
std::vector<int> Stuck(const WaitStates& ranks, int rank, int64_t idle_us, const SetDirectory& sets = {});

// Whether one of the ranks `of` waits with a note (Engine::Note).
bool HasNote(const WaitStates& ranks, const std::vector<int>& of);

// One line with the requests that each rank waits for, and how long. Ranks with equal requests share an
// entry.
std::string Describe(const WaitStates& ranks, const SetDirectory& sets = {});

// The members of the set that have not submitted `key`, that do not answer, or that have joined; empty when
// all others have submitted it.
std::string DescribeMissing(const WaitStates& ranks, const std::string& key, int set = 0,
                            const SetDirectory& sets = {});

// "'key'" in the set of all ranks, else "'key' of process set 1 [0, 2]".
std::string DescribeKey(const std::string& key, int set, const SetDirectory& sets);

}  // namespace tfddl
