#include "core/engine/live_requests.h"

#include <algorithm>
#include <tuple>

#include "base/recorder.h"
#include "base/request.h"

namespace tfddl {

void LiveRequests::Add(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  submitted_us_[key] = NowMicros();
}

void LiveRequests::Remove(const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  submitted_us_.erase(key);
}

bool LiveRequests::Contains(const std::string& key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return submitted_us_.count(key) != 0;
}

void LiveRequests::SetNote(const std::string& key, const std::string& note) {
  std::lock_guard<std::mutex> lock(mutex_);
  notes_[key] = note;
}

std::string LiveRequests::NoteOf(const std::string& key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto note = notes_.find(key);
  return note == notes_.end() ? "" : note->second;
}

std::vector<LiveRequest> LiveRequests::List(bool joined) const {
  std::vector<LiveRequest> requests;
  const int64_t now = NowMicros();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, time] : submitted_us_) {
      const auto note = notes_.find(key);
      requests.push_back(
          {key, now - time, 0, key == kJoinKey && joined, note == notes_.end() ? "" : note->second});
    }
  }
  std::sort(requests.begin(), requests.end(), [](auto& a, auto& b) {
    return a.waited_us != b.waited_us ? a.waited_us > b.waited_us : a.key < b.key;
  });
  return requests;
}

std::optional<std::pair<std::string, int64_t>> LiveRequests::Oldest(bool or_join) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::optional<std::pair<std::string, int64_t>> oldest;
  for (const auto& [key, time] : submitted_us_) {
    if (key == kJoinKey && !or_join) continue;
    if (!oldest || std::tie(time, key) < std::tie(oldest->second, oldest->first)) oldest.emplace(key, time);
  }
  return oldest;
}

}  // namespace tfddl
