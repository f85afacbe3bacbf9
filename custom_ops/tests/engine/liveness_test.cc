// Whether a process still exists.
#include "core/watchdog/liveness.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "tests/check.h"

namespace tfddl {
namespace {

// qemu-user writes a process's own /proc/self/stat itself, with the state '0'. ProcessId::Mine() is empty
// there.
bool StatIsMadeUp() {
  std::string pid, name, state;
  std::ifstream("/proc/self/stat") >> pid >> name >> state;
  return state == "0";
}

void TestGone() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const std::string mine = ProcessId::Mine().value().Encode();
    if (write(ends[1], mine.data(), mine.size()) < 0) _exit(1);
    alarm(60);  // a check that fails ends its parent alone
    for (;;) pause();
  }
  close(ends[1]);  // read() ends if the child fails
  char bytes[1000];
  const ssize_t length = read(ends[0], bytes, sizeof bytes);
  CHECK(length > 0);
  ProcessId id = ProcessId::Decode(std::string(bytes, static_cast<size_t>(length)));
  CHECK(id.pid == child && id.host == ProcessId::Mine().value().host);
  CHECK(!id.Gone());
  ++id.started;  // an earlier process with this PID
  CHECK(id.Gone());
  --id.started;
  rlimit files;
  CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit none = {0, files.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  CHECK(!id.Gone());  // this process can open no file
  CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
  CHECK(kill(child, SIGKILL) == 0);
  siginfo_t info;
  CHECK(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(id.Gone());  // a zombie
  CHECK(waitpid(child, nullptr, 0) == child);
  CHECK(id.Gone());
}

}  // namespace
}  // namespace tfddl

int main() {
  if (tfddl::StatIsMadeUp()) {
    CHECK(!tfddl::ProcessId::Mine());
    return Skip("an emulator makes up /proc/self/stat");
  }
  tfddl::TestGone();
  std::puts("liveness: ok");
  return 0;
}
