// What an engine tells: its members, what waits in it, and how requests ended. On any thread.
#include <algorithm>
#include <tuple>
#include <utility>

#include "core/engine/engine.h"

namespace tfddl {

int Engine::MemberOf(int global_rank) const {
  const auto it = std::lower_bound(members_.begin(), members_.end(), global_rank);
  return it != members_.end() && *it == global_rank ? static_cast<int>(it - members_.begin()) : -1;
}

std::string Engine::DescribeMembers() const {
  return set_.empty() ? "in [0, " + std::to_string(size_) + ")" : "a member of " + set_;
}

std::optional<std::pair<std::string, int64_t>> Engine::Oldest(bool or_join) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::optional<std::pair<std::string, int64_t>> oldest;
  for (const auto& [key, time] : live_) {
    if (key == kJoinKey && !or_join) continue;
    if (!oldest || std::tie(time, key) < std::tie(oldest->second, oldest->first)) oldest.emplace(key, time);
  }
  return oldest;
}

void Engine::Note(const std::string& key, const std::string& note) {
  std::lock_guard<std::mutex> lock(mutex_);
  notes_[key] = note;
}

void Engine::RecordEnd(const Request& request, const Status& status) {
  recorder_.Record(status.ok() ? "done" : "error", request.key());
  if (!status.ok()) ++recorder_.counters.errors;
  if (request.span) request.span->End(status);
}

std::vector<LiveRequest> Engine::Waiting() const {
  std::vector<LiveRequest> waiting;
  const int64_t now = NowMicros();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, time] : live_) {
      const auto note = notes_.find(key);
      waiting.push_back(
          {key, now - time, 0, key == kJoinKey && joined(), note == notes_.end() ? "" : note->second});
    }
  }
  std::sort(waiting.begin(), waiting.end(), [](auto& a, auto& b) {
    return a.waited_us != b.waited_us ? a.waited_us > b.waited_us : a.key < b.key;
  });
  return waiting;
}

}  // namespace tfddl
