// When a thread that submits a request runs the engine's rounds itself (engine_poll.cc). Polling saves the
// time that the engine's thread and the completion thread take to wake up, but it is lost if the peers come
// late.
#pragma once

#include <atomic>
#include <chrono>

#include "base/request.h"

namespace tfddl {

class BusyPoll {
 public:
  // A small collective takes 5 to 10 us on one host if all ranks poll; 100 us if one of them has to wake up.
  static constexpr std::chrono::microseconds kLimit{150};
  // From here on, the thread yields its core between rounds.
  static constexpr std::chrono::microseconds kYieldAfter{20};

  explicit BusyPoll(bool on) : on_(on) {}

  bool on() const { return on_; }

  // Whether the thread that submits `request` should poll. Up to kMostSkipped requests are skipped after
  // polls in vain, and after a request that another thread submitted during a poll: the engine's thread would
  // agree on many such requests in one vote.
  bool Suits(const Request& request);
  void Begun() { polling_.store(true, std::memory_order_relaxed); }
  // A poll has ended: with the end of its request, or in vain.
  void Ended(bool in_time);

 private:
  static constexpr int kVainPolls = 4;  // in a row, before requests are skipped
  static constexpr int kMostSkipped = 64;

  const bool on_;
  std::atomic<bool> polling_{false};
  std::atomic<int> vain_{0};     // polls in a row
  std::atomic<int> to_skip_{0};  // requests
};

}  // namespace tfddl
