// Ranks as processes: which of them a rank sees in a call, how far they are, and which hold the others up.
#include "core/watchdog/presence.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/check.h"

namespace tfddl {
namespace {

// The other tests, and other runs of this one, have other names.
std::string Name() {
  static const std::string name = "tfddl-presence-test/" + std::to_string(getpid());
  return name;
}

// Waits to be killed. A check that fails ends the test alone, and the alarm ends the processes that it
// leaves.
[[noreturn]] void WaitForKill() {
  alarm(60);
  for (;;) pause();
}

// A process that is in the call as `rank`, `steps` steps from its begin, until it is killed.
pid_t Start(int rank, int steps) {
  Name();  // made by the parent, so that all have the same
  const pid_t process = fork();
  if (process) return process;
  Presence presence(Name(), rank);
  for (int step = 0; step < steps; ++step) presence.Step();
  WaitForKill();
}

// Waits for the kernel's view of other processes to change.
std::map<int, Sighting> Wait(const Presence& mine,
                             const std::function<bool(const std::map<int, Sighting>&)>& until) {
  for (int tries = 0; tries < 10000; ++tries) {
    const auto seen = mine.Seen();
    if (until(seen)) return seen;
    usleep(1000);
  }
  CHECK(false && "not seen within 10 s");
  return {};
}

void TestSteps() {
  const pid_t behind = Start(1, 0), ahead = Start(2, 2);
  Presence mine(Name(), 0);
  mine.Step();
  const auto all = [](const auto& seen) { return seen.size() == 3 && seen.at(2).step == 2; };
  auto seen = Wait(mine, all);
  CHECK(seen.at(0).pid == getpid() && seen.at(0).step == 1);
  CHECK(seen.at(1).pid == behind && seen.at(1).step == 0);
  CHECK(Missing(seen, 3).empty() && Missing(seen, 5) == "3, 4");
  auto guilty = HoldingUp(seen);
  CHECK(guilty.size() == 2 && guilty.count(0) && guilty.count(1));

  kill(ahead, SIGSTOP);
  seen = Wait(mine, [](const auto& now) { return now.at(2).stopped; });
  guilty = HoldingUp(seen);
  CHECK(guilty.size() == 1 && InWords(guilty) == "rank 2 (process " + std::to_string(ahead) + ")");

  kill(behind, SIGKILL);
  kill(ahead, SIGKILL);
  CHECK(waitpid(behind, nullptr, 0) == behind && waitpid(ahead, nullptr, 0) == ahead);
  seen = mine.Seen();
  CHECK(seen.size() == 1 && HoldingUp(seen).empty());
}

// A process that a rank has forked keeps the rank's socket open, but is not that rank.
void TestForked() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t rank = fork();
  if (!rank) {
    Presence presence(Name(), 7);
    const pid_t forked = fork();
    if (forked) CHECK(write(ends[1], &forked, sizeof(forked)) == sizeof(forked));
    WaitForKill();
  }
  pid_t forked = 0;
  CHECK(read(ends[0], &forked, sizeof(forked)) == sizeof(forked));
  const Presence mine(Name(), 0);
  CHECK(mine.Seen().count(7));
  kill(rank, SIGKILL);
  CHECK(waitpid(rank, nullptr, 0) == rank);
  CHECK(!mine.Seen().count(7));
  kill(forked, SIGKILL);
}

void TestWithoutAName() {
  Presence mine("", 0);
  mine.Step();
  CHECK(mine.Seen().empty());
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestSteps();
  tfddl::TestForked();
  tfddl::TestWithoutAName();
}
