#include "core/watchdog/init_watchdog.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace tfddl {
namespace {

// The ranks of this host whose sockets exist.
std::set<int> Present(const std::string& socket_name) {
  std::set<int> ranks;
  if (socket_name.empty()) return ranks;
  const std::string start = "@" + socket_name + "-";  // how /proc shows an abstract name
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const size_t at = line.rfind(start);
    if (at != std::string::npos) ranks.insert(std::atoi(line.c_str() + at + start.size()));
  }
  return ranks;
}

}  // namespace

InitWatchdog::InitWatchdog(InitWatchdogOptions options)
    : options_(std::move(options)), thread_([this] { Wait(); }) {}

InitWatchdog::~InitWatchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void InitWatchdog::Wait() {
  using Seconds = std::chrono::duration<double>;
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  if (options_.warning_s < options_.limit_s) {
    if (wake_.wait_until(lock, begun + Seconds(options_.warning_s), [this] { return over_; })) return;
    const auto present = Present(options_.socket_name);
    if (present.empty() || *present.begin() == options_.rank) {  // the lowest rank reports for the host
      std::fprintf(stderr, "tfddl: %s; waiting on.\n", Report(present, options_.warning_s).c_str());
    }
  }
  if (wake_.wait_until(lock, begun + Seconds(options_.limit_s), [this] { return over_; })) return;
  std::fprintf(stderr, "tfddl: %s. The limit is TFDDL_STALL_LIMIT=%.0f seconds.\n",
               Report(Present(options_.socket_name), options_.limit_s).c_str(), options_.limit_s);
  _exit(1);
}

std::string InitWatchdog::Report(const std::set<int>& present, double waited_s) const {
  const std::string report = "rank " + std::to_string(options_.rank) + " has waited " +
                             std::to_string(static_cast<int64_t>(waited_s)) + " s in " + options_.call;
  if (present.empty()) return report + " for the other ranks, which all have to call it";
  if (options_.local_size < options_.size) {
    return report + "; " + std::to_string(present.size()) + " of the " + std::to_string(options_.local_size) +
           " ranks on this host have called it";
  }
  std::string missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!present.count(rank)) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (missing.empty()) return report + ", which all ranks have called; not all have come to its end";
  return report + "; it has not been called by rank " + missing;
}

}  // namespace tfddl
