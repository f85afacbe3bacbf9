// The timeline: the phases of each request of this rank and their durations, as a trace for Perfetto and
// chrome://tracing (trace_file.h). It is off by default.
//
// A row of the trace shows one request at a time, so there are as many rows as requests were in flight at
// once. The phases of a request are "wait for peers", on a GPU "queue", then the transfer, named after its
// kind. "callback" follows. `tfddl timeline` (tfddl/timeline) reads the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/request.h"

namespace tfddl {

class Recording;  // of one file

// One request in the trace. Its destruction is the end of the callback.
class Span {
 public:
  Span(std::shared_ptr<Recording> recording, int row) : recording_(std::move(recording)), row_(row) {}
  ~Span();

  // The wait for peers ends. `ticket` is the number of the collective, equal on all members of the set.
  void Agreed(const Request& request, uint64_t ticket);

  // On a GPU: the collective is launched.
  void Launched(const Request& request);

  // The request ends and its callback begins.
  void End(const Status& status);

 private:
  const std::shared_ptr<Recording> recording_;
  const int row_;
  int64_t ended_us_ = 0;
};

class Timeline {
 public:
  Timeline() = default;
  ~Timeline() { Stop(); }

  // The timeline of this process, for all its engines.
  static std::shared_ptr<Timeline> OfProcess();

  // Takes the file descriptor, and records the requests that are submitted from now on. Returns false, and
  // does not take the descriptor, when it has been started already.
  bool Start(int file, int rank, int size, bool mark_votes);

  // Returns why the file is incomplete; empty: it is complete, or there was none.
  std::string Stop();

  // A request begins. Returns null, and records nothing, when the timeline is off or cannot keep up. `set` is
  // the name of the process set; empty: all ranks.
  std::shared_ptr<Span> Begin(const Request& request, const std::string& set) const {
    return on_.load(std::memory_order_relaxed) ? BeginNow(request, set) : nullptr;
  }

  // A vote has ended with `decisions` decisions.
  void MarkVote(const std::string& set, size_t decisions) const {
    if (marks_.load(std::memory_order_relaxed)) MarkVoteNow(set, decisions);
  }

 private:
  std::shared_ptr<Span> BeginNow(const Request& request, const std::string& set) const;
  void MarkVoteNow(const std::string& set, size_t decisions) const;
  std::shared_ptr<Recording> recording() const;

  std::atomic<bool> on_{false};
  std::atomic<bool> marks_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<Recording> recording_;
};

}  // namespace tfddl
