// A scheduler suspends the whole job for longer than the limit of the watchdog, and the job goes on.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/engine/job.h"

namespace tfddl {
namespace {

using std::chrono::milliseconds;

// Stops this process for a while, after `begin`.
pid_t Suspend(milliseconds begin, milliseconds length) {
  const pid_t job = getpid(), child = fork();
  if (child != 0) return child;
  std::this_thread::sleep_for(begin);
  kill(job, SIGSTOP);
  std::this_thread::sleep_for(length);
  kill(job, SIGCONT);
  _exit(0);
}

void TestSuspension() {
  const pid_t child = Suspend(milliseconds(100), milliseconds(3500));
  WatchdogOptions watch;
  watch.warning_s = watch.limit_s = 3;
  Job job(2, 0, {}, watch);
  Outcomes outcomes(2);
  std::vector<float> x(1, 1), y(1, 2);
  job.engines[0]->Submit(Allreduce("x", &x, outcomes.At(0)));
  CHECK(waitpid(child, nullptr, 0) == child);
  std::this_thread::sleep_for(milliseconds(500));  // the watchdogs look at the request several times
  job.engines[1]->Submit(Allreduce("x", &y, outcomes.At(1)));
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  CHECK(x[0] == 3 && y[0] == 3);
  job.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestSuspension();
  std::puts("suspension: ok");
  return 0;
}
