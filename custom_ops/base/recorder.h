// The flight recorder: a ring buffer of the last events and a few counters, always on.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tfddl {

// Microseconds on a clock that never goes back; its origin is arbitrary but one per machine.
int64_t NowMicros();

// Whole seconds, with their unit.
inline std::string Seconds(int64_t micros) { return std::to_string(micros / 1000000) + " s"; }

struct Event {
  int64_t time_us;
  const char* what;  // "submit", "start", "done" or "error"
  std::string name;
};

struct Counters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> votes{0};
  std::atomic<uint64_t> empty_votes{0};  // that let nothing run
  std::atomic<uint64_t> bytes_reduced{0};
};

class Recorder {
 public:
  void Record(const char* what, const std::string& name);
  std::vector<Event> Events() const;  // oldest first
  std::optional<Event> Last() const;
  Counters counters;

 private:
  static constexpr size_t kCapacity = 8192;
  mutable std::mutex mutex_;
  std::vector<Event> ring_;
  size_t next_ = 0;
};

}  // namespace tfddl
