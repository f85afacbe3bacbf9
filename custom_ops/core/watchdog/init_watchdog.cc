#include "core/watchdog/init_watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include "core/trace/flight_record.h"

namespace tfddl {

InitWatchdog::InitWatchdog(InitWatchdogOptions options)
    : options_(std::move(options)),
      presence_(options_.presence, options_.rank),
      thread_([this] { Wait(); }) {}

InitWatchdog::~InitWatchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void InitWatchdog::Step() {
  std::lock_guard<std::mutex> lock(mutex_);
  presence_.Step();
}

void InitWatchdog::Wait() {
  using Seconds = std::chrono::duration<double>;
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  if (options_.warning_s < options_.limit_s) {
    if (wake_.wait_until(lock, begun + Seconds(options_.warning_s), [this] { return over_; })) return;
    const auto seen = presence_.Seen();
    const auto guilty = HoldingUp(seen);
    const bool lowest = std::all_of(seen.begin(), seen.end(), [&](const auto& other) {
      return other.first >= options_.rank || guilty.count(other.first);
    });
    if (lowest) {  // it reports for the host
      std::fprintf(stderr, "tfddl: %s; waiting on.\n", Report(options_.warning_s).c_str());
    }
  }
  if (wake_.wait_until(lock, begun + Seconds(options_.limit_s), [this] { return over_; })) return;
  const std::string report = Report(options_.limit_s);
  const std::string hint = FlightRecord::OfProcess().WriteStall(report);
  std::fprintf(stderr, "tfddl: %s. The limit is TFDDL_STALL_LIMIT=%.0f seconds.%s\n", report.c_str(),
               options_.limit_s, hint.c_str());
  _exit(1);
}

std::string InitWatchdog::Report(double waited_s) const {
  const auto seen = presence_.Seen();
  const std::string report = "rank " + std::to_string(options_.rank) + " has waited " +
                             std::to_string(static_cast<int64_t>(waited_s)) + " s in " + options_.call;
  if (seen.empty()) return report + " for the other ranks, which all have to call it";
  const auto guilty = HoldingUp(seen);
  if (options_.local_size < options_.size) {
    if (guilty.empty() || static_cast<int>(seen.size()) < options_.local_size) {
      return report + "; " + std::to_string(seen.size()) + " of the " + std::to_string(options_.local_size) +
             " ranks on this host have called it";
    }
  } else if (const auto missing = Missing(seen, options_.size); !missing.empty()) {
    return report + "; it has not been called by rank " + missing;
  }
  if (guilty.empty()) return report + ", which all ranks have called; not all have come to its end";
  const std::string are = guilty.size() == 1 ? " is" : " are";
  if (guilty.begin()->second.stopped) {
    return report + " for " + InWords(guilty) + ", which" + are + " stopped (SIGSTOP, or a debugger)";
  }
  return report + " for " + InWords(guilty) + ", which" + are + " in that call too and" + are +
         " held up there: perhaps another thread keeps Python's lock (the GIL)";
}

}  // namespace tfddl
