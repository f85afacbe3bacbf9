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
  using Clock = std::chrono::steady_clock;
  const auto after = [begun = Clock::now()](double seconds) {
    return begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  std::unique_lock<std::mutex> lock(mutex_);
  // Again and again: a rank may be held up after the first warning.
  const double pause_s = std::max(1.0, options_.warning_s);
  for (double waited_s = options_.warning_s; waited_s < options_.limit_s; waited_s += pause_s) {
    if (wake_.wait_until(lock, after(waited_s), [this] { return over_; })) return;
    if (ReportsForHost()) std::fprintf(stderr, "tfddl: %s; waiting on.\n", Report(waited_s).c_str());
  }
  if (wake_.wait_until(lock, after(options_.limit_s), [this] { return over_; })) return;
  const std::string report = Report(options_.limit_s);
  const std::string hint = FlightRecord::OfProcess().WriteStall(report);
  std::fprintf(stderr,
               "tfddl: %s. The limit is TFDDL_STALL_LIMIT=%.0f seconds; set a higher limit if a rank is only "
               "slow.%s\n",
               report.c_str(), options_.limit_s, hint.c_str());
  _exit(1);
}

bool InitWatchdog::ReportsForHost() const {
  const auto seen = presence_.Seen();
  const auto guilty = HoldingUp(seen);
  return std::all_of(seen.begin(), seen.end(), [&](const auto& other) {
    return other.first >= options_.rank || guilty.count(other.first);
  });
}

std::string InitWatchdog::Report(double waited_s) const {
  const auto seen = presence_.Seen();
  const std::string report = "rank " + std::to_string(options_.rank) + " has waited " +
                             std::to_string(static_cast<int64_t>(waited_s)) + " s in " + options_.call;
  if (seen.empty()) return report + " for the other ranks: call it on all ranks";
  const auto guilty = HoldingUp(seen);
  if (options_.local_size < options_.size) {
    if (guilty.empty() || static_cast<int>(seen.size()) < options_.local_size) {
      return report + "; " + std::to_string(seen.size()) + " of the " + std::to_string(options_.local_size) +
             " ranks on this host have called it: call it on all ranks";
    }
  } else if (const auto missing = Missing(seen, options_.size); !missing.empty()) {
    return report + "; it has not been called by rank " + missing + ": call it on all ranks";
  }
  if (guilty.empty())
    return report +
           ", which all ranks have called; not all have come to its end: run `tfddl doctor` if it lasts";
  const std::string are = guilty.size() == 1 ? " is" : " are";
  if (guilty.begin()->second.stopped) {
    return report + " for " + InWords(guilty) + ", which" + are +
           " stopped (SIGSTOP, or a debugger): let all ranks go on";
  }
  return report + " for " + InWords(guilty) + ", which" + are + " in that call too and" + are +
         " held up there: see whether another thread keeps Python's lock (the GIL)";
}

}  // namespace tfddl
