// Warns, again and again, when hvd.init() or another call that waits inside MPI takes long, and ends the
// process at the limit. It is a native thread, because MPI_Init waits for all ranks while it holds Python's
// lock.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "core/watchdog/presence.h"

namespace tfddl {

struct InitWatchdogOptions {
  std::string call;      // the call that waits, such as "hvd.init()"
  std::string presence;  // see Presence; empty if no rank can be named
  int rank = 0;
  int size = 1;
  int local_size = 1;  // ranks on this host
  double warning_s = 60;
  double limit_s = 1800;
};

class InitWatchdog {
 public:
  explicit InitWatchdog(InitWatchdogOptions options);
  ~InitWatchdog();  // the call is over

  // This rank has come one step further in the call. All ranks take the same steps.
  void Step();

 private:
  void Wait();
  // Whether this rank is the lowest on its host that is not held up itself: the others stay silent.
  bool ReportsForHost() const;
  std::string Report(double waited_s) const;

  const InitWatchdogOptions options_;
  Presence presence_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace tfddl
