#include "core/watchdog/exit_watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "core/trace/flight_record.h"

namespace tfddl {
namespace {

// Negative for a time to come.
double SecondsSince(std::chrono::steady_clock::time_point time) {
  const auto now = std::chrono::steady_clock::now();
  return time > now ? -1.0 : std::chrono::duration<double>(now - time).count();
}

}  // namespace

ExitWatchdog::ExitWatchdog(ExitWatchdogOptions options)
    : options_(std::move(options)), presence_(options_.presence, options_.rank) {}

ExitWatchdog::~ExitWatchdog() {
  if (!thread_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  wake_.notify_one();
  thread_->join();
}

void ExitWatchdog::Wait() {
  presence_.Step();
  thread_ = std::make_unique<std::thread>([this] { Watch(); });
}

void ExitWatchdog::Watch() {
  const auto begun = Clock::now();
  auto all_have_begun = Clock::time_point::max();
  double next_warning_s = options_.warning_s;
  std::unique_lock<std::mutex> lock(mutex_);
  const std::chrono::duration<double> look(std::clamp(options_.warning_s, 0.1, 1.0));
  while (!wake_.wait_for(lock, look, [this] { return over_; })) {
    if (all_have_begun == Clock::time_point::max() && AllHaveBegun()) all_have_begun = Clock::now();
    const double waited_s = SecondsSince(begun);
    const char* limit = waited_s >= options_.exit_limit_s                  ? "TFDDL_EXIT_LIMIT"
                        : SecondsSince(all_have_begun) >= options_.limit_s ? "TFDDL_STALL_LIMIT"
                                                                           : nullptr;
    if (limit) {
      const std::string report = Report(waited_s);
      const std::string hint = FlightRecord::OfProcess().WriteStall(report);
      std::fprintf(stderr,
                   "tfddl: %s. The limit is %s; end the program on all ranks, or set a higher limit.%s\n",
                   report.c_str(), limit, hint.c_str());
      _exit(1);
    }
    if (waited_s < next_warning_s) continue;
    std::fprintf(stderr, "tfddl: %s; waiting on. Set TFDDL_EXIT_LIMIT to end such waits.\n",
                 Report(waited_s).c_str());
    next_warning_s += std::max(1.0, options_.warning_s);
  }
}

// Looked up on this host only, since no transport is left by now.
bool ExitWatchdog::AllHaveBegun() {
  for (const auto& [rank, sighting] : presence_.Seen()) begun_[rank] = sighting;
  return options_.local_size == options_.size && Missing(begun_, options_.size).empty();
}

std::string ExitWatchdog::Report(double waited_s) {
  const std::string report = "rank " + std::to_string(options_.rank) + " has waited " +
                             std::to_string(static_cast<int64_t>(waited_s)) + " s at its end";
  const auto seen = presence_.Seen();
  if (seen.empty()) return report + " for the other ranks";
  if (options_.local_size < options_.size) {
    return report + "; " + std::to_string(seen.size()) + " of the " + std::to_string(options_.local_size) +
           " ranks on this host have come to theirs";
  }
  const auto missing = Missing(begun_, options_.size);
  if (!missing.empty()) return report + ", to which rank " + missing + " has not come";
  const auto guilty = HoldingUp(seen);
  if (guilty.empty()) return report + " in MPI_Finalize, which all ranks have called";
  return report + " for " + InWords(guilty) +
         (guilty.begin()->second.stopped ? ", stopped (SIGSTOP, or a debugger)"
                                         : ", whose exit handlers have not ended");
}

}  // namespace tfddl
