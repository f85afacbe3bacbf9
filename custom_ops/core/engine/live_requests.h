// The requests of one engine that are submitted and not done, for the watchdog. Any thread may call it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tfddl {

struct LiveRequest {
  std::string key;
  int64_t waited_us = 0;
  int set = 0;          // the process set in which it was submitted
  bool joined = false;  // hvd.join(), and this rank has joined
  std::string note;     // see Engine::Note
};

class LiveRequests {
 public:
  void Add(const std::string& key);
  void Remove(const std::string& key);
  bool Contains(const std::string& key) const;
  void SetNote(const std::string& key, const std::string& note);
  std::string NoteOf(const std::string& key) const;  // empty: it has none

  // All of them, the longest wait first. `joined`: whether this rank has joined.
  std::vector<LiveRequest> List(bool joined) const;
  // Key and time of submission of the oldest one; a waiting hvd.join() counts only with `or_join`.
  std::optional<std::pair<std::string, int64_t>> Oldest(bool or_join) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, int64_t> submitted_us_;
  std::map<std::string, std::string> notes_;
};

}  // namespace tfddl
