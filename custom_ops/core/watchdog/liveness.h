// Tells whether the process of a peer still exists, if it runs on the same host and in the same PID
// namespace. PIDs are reused, so the time of the start identifies a process too.
#pragma once

#include <optional>
#include <string>

namespace tfddl {

struct ProcessId {
  std::string host;  // the boot of the host and the PID namespace
  int64_t pid = 0;
  int64_t started = 0;  // clock ticks since the boot

  // This process; empty where /proc does not tell.
  static std::optional<ProcessId> Mine();
  std::string Encode() const;
  static ProcessId Decode(const std::string& bytes);

  // Whether the process has ended; a zombie counts as ended. Only for processes with the same `host` as
  // Mine().
  bool Gone() const;
};

}  // namespace tfddl
