#include "core/watchdog/liveness.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/wire.h"

namespace tfddl {
namespace {

struct Stat {
  char state = 0;
  int64_t started = 0;
};

// Empty if the file cannot be read; errno says why, and is 0 if the text is not of the known form.
std::optional<Stat> ReadStat(int64_t pid) {
  const int file = open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  char line[4096];  // longer than 52 numbers and a name of 64 characters
  const ssize_t length = read(file, line, sizeof line);
  const int failure = length < 0 ? errno : 0;
  close(file);
  errno = failure;
  if (length < 0) return std::nullopt;
  const std::string text(line, static_cast<size_t>(length));
  const size_t name_end = text.rfind(')');  // the name itself may hold spaces and parentheses
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  std::string skipped;
  fields >> stat.state;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> stat.started)) return std::nullopt;
  return stat;
}

}  // namespace

std::optional<ProcessId> ProcessId::Mine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64];
  const ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space);
  const auto stat = ReadStat(getpid());
  if (boot.empty() || length <= 0 || !stat) return std::nullopt;
  // An emulator (qemu-user) makes up a process's own file, without a state and with another time in each
  // thread.
  if (stat->state == '0') return std::nullopt;
  char self[32];  // our PID in the namespace that /proc shows
  const ssize_t digits = readlink("/proc/self", self, sizeof self);
  if (digits <= 0 || std::string(self, static_cast<size_t>(digits)) != std::to_string(getpid())) {
    return std::nullopt;
  }
  return ProcessId{boot + " " + std::string(space, static_cast<size_t>(length)), getpid(), stat->started};
}

std::string ProcessId::Encode() const {
  WireWriter writer;
  writer.String(host);
  writer.Int(pid);
  writer.Int(started);
  return writer.bytes();
}

ProcessId ProcessId::Decode(const std::string& bytes) {
  WireReader reader(bytes);
  ProcessId id;
  id.host = reader.String();
  id.pid = reader.Int();
  id.started = reader.Int();
  return id;
}

bool ProcessId::Gone() const {
  const auto stat = ReadStat(pid);
  if (!stat) return errno == ENOENT || errno == ESRCH;  // other errors say nothing about the peer
  return stat->started != started || stat->state == 'Z' || stat->state == 'X';
}

}  // namespace tfddl
