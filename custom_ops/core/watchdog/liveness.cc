#include "core/watchdog/liveness.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "base/wire.h"

namespace tfddl {
namespace {

struct Stat {
  char state = 0;
  int64_t started = 0;
};

std::optional<Stat> ReadStat(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
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
  return !stat || stat->started != started || stat->state == 'Z' || stat->state == 'X';
}

}  // namespace tfddl
