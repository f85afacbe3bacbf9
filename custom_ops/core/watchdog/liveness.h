// Tells whether a peer's process still exists, where that can be known: on the same host, in the same PID
// namespace. A process is known by its number and the time of its start, since numbers are used again.
#pragma once

#include <optional>
#include <string>

namespace tfddl {

struct ProcessId {
  std::string host;  // the boot of the host and the PID namespace
  int64_t pid = 0;
  int64_t started = 0;  // clock ticks since the boot

  // Of this process; empty where /proc does not tell.
  static std::optional<ProcessId> Mine();
  std::string Encode() const;
  static ProcessId Decode(const std::string& bytes);

  // From here: whether it has ended, although perhaps nobody has waited for it yet.
  bool Gone() const;
};

}  // namespace tfddl
