// What each rank waits for, as the watchdogs tell each other, and what can be read from all of it together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tfddl {

// What the watchdog sees of a request that has been submitted and is not done.
struct LiveRequest {
  std::string key;
  int64_t waited_us = 0;
  std::string note;  // see Engine::Note
};

struct Situation {
  std::vector<LiveRequest> waiting;  // the longest first
  size_t left_out = 0;               // more of them, for which the message had no room
  int64_t still_us = 0;              // since anything moved on this rank: a submit, a vote, a transfer
  std::string last;                  // its last collective, in words
  bool leaving = false;              // in hvd.shutdown()

  bool Has(const std::string& key) const;
  // At most `limit` bytes.
  std::string Encode(size_t limit) const;
  static Situation Decode(const std::string& bytes);
};

// By rank; empty: it did not answer.
using Situations = std::vector<std::optional<Situation>>;

// True when no rank can go on unless one of its other threads submits: all wait, nothing has moved on any for
// `still_us`, and no collective has been submitted by all.
bool WaitForDifferent(const Situations& ranks, int64_t still_us);

// Whether any rank waits with a note.
bool HasNote(const Situations& ranks);

// One line: who waits for what, and how long. Ranks that wait for the same are named together.
std::string Describe(const Situations& ranks);

// The ranks that have not submitted `key`, and those that are silent; empty when all have it.
std::string DescribeMissing(const Situations& ranks, const std::string& key);

}  // namespace tfddl
