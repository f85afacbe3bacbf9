// The flight recorder: a ring buffer of the last events and a few counters, always on.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tfddl {

// Microseconds on a monotonic clock. All processes of a machine share its origin, which is arbitrary.
int64_t NowMicros();

// "12 s": whole seconds, with the unit.
inline std::string Seconds(int64_t micros) { return std::to_string(micros / 1000000) + " s"; }

struct Event {
  int64_t time_us;
  const char* type;  // "submit", "start", "done" or "error"
  std::string name;
};

struct Counters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> votes{0};
  std::atomic<uint64_t> empty_votes{0};  // votes that started no collective
  std::atomic<uint64_t> bytes_reduced{0};
};

class Recorder {
 public:
  void Record(const char* type, const std::string& name);
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
