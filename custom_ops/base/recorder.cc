#include "base/recorder.h"

#include <chrono>

namespace tfddl {

int64_t NowMicros() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Recorder::Record(const char* type, const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ring_.size() < kCapacity) {
    ring_.push_back({NowMicros(), type, name});
  } else {
    ring_[next_] = {NowMicros(), type, name};
    next_ = (next_ + 1) % kCapacity;
  }
}

std::optional<Event> Recorder::Last() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ring_.empty()) return std::nullopt;
  return ring_[(next_ + ring_.size() - 1) % ring_.size()];
}

std::vector<Event> Recorder::Events() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Event> events(ring_.begin() + static_cast<std::ptrdiff_t>(next_), ring_.end());
  events.insert(events.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(next_));
  return events;
}

}  // namespace tfddl
