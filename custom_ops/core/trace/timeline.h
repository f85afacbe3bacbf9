// The timeline: for what each request of this rank waited and how long, as a trace that Perfetto and
// chrome://tracing show (trace_file.h). Off but when somebody asks for it.
//
// A row of the trace holds one request at a time, the first free one, so that there are as many rows as
// requests were in flight at once. Inside a request lie its phases: "wait for peers", on a GPU "queue", and
// the transfer, which has the name of its kind; behind it lies "callback". `tfddl timeline` (tfddl/timeline)
// reads what is written here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/request.h"

namespace tfddl {

class Recording;  // into one file

// One request in the trace, until nobody holds it any more: the end of its callback.
class Span {
 public:
  Span(std::shared_ptr<Recording> recording, int row) : recording_(std::move(recording)), row_(row) {}
  ~Span();

  // The wait for peers ends. `ticket` is the number of the collective, the same on all members of the set.
  void Agreed(const Request& request, uint64_t ticket);

  // On a GPU: its turn has come.
  void Launched(const Request& request);

  // What follows is the callback.
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

  // The one of this process, for all of its engines.
  static std::shared_ptr<Timeline> OfProcess();

  // Takes the file descriptor. Requests that are submitted from now on are recorded. False, and nothing is
  // taken: it has been started already.
  bool Start(int file, int rank, int size, bool mark_votes);

  // Returns why the file is not whole; empty: it is, or there was none.
  std::string Stop();

  // A request begins; null, and nothing is recorded, where the timeline is off or cannot keep up. `set`: in
  // words; empty: all ranks.
  std::shared_ptr<Span> Begin(const Request& request, const std::string& set) const {
    return on_.load(std::memory_order_relaxed) ? BeginNow(request, set) : nullptr;
  }

  // A vote has ended, which lets `decisions` names run.
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
