// Watches the exit of the ranks: one whose exit handlers do not end, or whose program goes on, lets the
// others wait in MPI_Finalize. It says each `warning_s` whom this rank waits for.
//
// A rank may rightly go on for an hour, for example to export its model. So there is an end after `limit_s`
// only once the exit of all ranks has begun, and else after `exit_limit_s`, where the user has set one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/watchdog/presence.h"

namespace tfddl {

struct ExitWatchdogOptions {
  std::string presence;  // see Presence; empty if no rank can be named
  int rank = 0;
  int size = 1;
  int local_size = 1;  // ranks on this host
  double warning_s = 60;
  double limit_s = 1800;
  double exit_limit_s = 1e9;
};

class ExitWatchdog {
 public:
  // The exit handlers of this rank begin.
  explicit ExitWatchdog(ExitWatchdogOptions options);
  ~ExitWatchdog();

  // The exit handlers have ended: from now on this rank waits for the others.
  void Wait();

 private:
  using Clock = std::chrono::steady_clock;

  void Watch();
  bool AllHaveBegun();
  std::string Report(double waited_s);

  const ExitWatchdogOptions options_;
  Presence presence_;
  std::map<int, Sighting> begun_;  // the ranks whose exit has begun, also those that have ended since
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace tfddl
