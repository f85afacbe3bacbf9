#include "core/trace/timeline.h"

#include <cstdio>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "base/host_name.h"
#include "base/json.h"
#include "base/recorder.h"
#include "core/trace/trace_file.h"

namespace tfddl {
namespace {

constexpr char kWait[] = "wait for peers";
constexpr char kQueue[] = "queue";
constexpr int kVotesRow = 0;

// `, "key": value`, where the value is JSON.
std::string Field(const char* key, const std::string& value) {
  std::string field = ", \"";
  return field.append(key).append("\": ").append(value);
}

std::string Field(const char* key, int64_t value) { return Field(key, std::to_string(value)); }

std::string Object(const std::string& fields) { return "{" + (fields.empty() ? "" : fields.substr(2)) + "}"; }

std::string NameOfSetOrAll(const std::string& set) { return Quote(set.empty() ? "all ranks" : set); }

std::string Arguments(const Request& request, const std::string& set) {
  int64_t bytes = 0;
  for (const Buffer& buffer : request.buffers) {
    bytes += buffer.count * static_cast<int64_t>(SizeOf(request.dtype));
  }
  const bool moves_data = request.kind != Kind::kBarrier && request.kind != Kind::kJoin;
  std::string fields = Field("kind", Quote(NameOf(request.kind)));
  if (request.kind == Kind::kAllreduce || request.kind == Kind::kReducescatter) {
    fields += Field("op", Quote(NameOf(request.op)));
  }
  if (moves_data) {
    fields += Field("dtype", Quote(NameOf(request.dtype))) + Field("bytes", bytes) +
              Field("tensors", static_cast<int64_t>(request.buffers.size()));
  }
  fields += Field("process_set", NameOfSetOrAll(set));
  if (request.buckets > 1) {
    fields += Field("bucket", request.bucket + 1) + Field("buckets", request.buckets);
  }
  // Text, because JavaScript's numbers have 53 bits.
  if (request.step != 0) fields += Field("step", Quote(std::to_string(request.step)));
  if (request.device != Device::kHost) fields += Field("device", Quote("GPU"));
  return Object(fields);
}

}  // namespace

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  Recording(int file, int rank, int size, bool marks) : rank_(rank), file_(file, [this] { Pulse(); }) {
    std::string boot;  // processes of one boot share the clock
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    Meta("tfddl_timeline", 0,
         Field("rank", rank) + Field("size", size) + Field("host", Quote(HostName())) +
             Field("clock", Quote(boot)));
    Meta("process_name", 0, Field("name", Quote("rank " + std::to_string(rank) + ", " + HostName())));
    Meta("process_sort_index", 0, Field("sort_index", rank));
    if (marks) Meta("thread_name", kVotesRow, Field("name", Quote("votes")));
  }

  std::shared_ptr<Span> Begin(const Request& request, const std::string& set) {
    const std::string arguments = Arguments(request, set);
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_.Crowded()) {
      ++left_out_;
      return nullptr;
    }
    const int64_t now = NowMicros();
    if (left_out_ != told_) Tell(now);
    const int row = TakeRow();
    Event("B", now, row, Field("name", Quote(request.key())) + Field("args", arguments));
    Event("B", now, row, Field("name", Quote(kWait)));
    return std::make_shared<Span>(shared_from_this(), row);
  }

  void Enter(int row, const char* phase, const std::string& arguments) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = NowMicros();
    Event("E", now, row, "");
    Event("B", now, row, Field("name", Quote(phase)) + Field("args", Object(arguments)));
  }

  // Returns the time.
  int64_t End(int row, const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = NowMicros();
    const std::string error = status.ok() ? "" : Field("error", Quote(status.message()));
    Event("E", now, row, "");
    Event("E", now, row, Field("args", Object(error)));
    return now;
  }

  void EndCallback(int row, int64_t began_us) {
    std::lock_guard<std::mutex> lock(mutex_);
    Event("X", began_us, row, Field("dur", NowMicros() - began_us) + Field("name", Quote("callback")));
    free_rows_.insert(row);
  }

  void MarkVote(const std::string& set, size_t decisions) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_.Crowded()) return;
    const std::string arguments =
        Field("process_set", NameOfSetOrAll(set)) + Field("agreed", static_cast<int64_t>(decisions));
    Event("i", NowMicros(), kVotesRow,
          Field("s", Quote("t")) + Field("name", Quote("vote")) + Field("args", Object(arguments)));
  }

  // Without the lock: it waits for the file, and no engine may wait for that.
  std::string Close() { return file_.Close(MetaEvent("tfddl_end", 0, Field("left_out", left_out()))); }

 private:
  int64_t left_out() {
    std::lock_guard<std::mutex> lock(mutex_);
    return left_out_;
  }

  // Marks the time, so that the file shows how long requests have waited if the process is killed.
  void Pulse() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int>(free_rows_.size()) == rows_) return;
    Event("i", NowMicros(), kVotesRow, Field("s", Quote("p")) + Field("name", Quote("in flight")));
  }

  // Records the number of left-out requests at once: a rank that is killed does not reach Close(). Like the
  // functions below, it needs the lock.
  void Tell(int64_t now) {
    told_ = left_out_;
    Event("i", now, kVotesRow,
          Field("s", Quote("p")) + Field("name", Quote("left out")) +
              Field("args", Object(Field("left_out", left_out_))));
  }

  int TakeRow() {
    if (free_rows_.empty()) {
      free_rows_.insert(++rows_);
      Meta("thread_name", rows_, Field("name", Quote("in flight " + std::to_string(rows_))));
      Meta("thread_sort_index", rows_, Field("sort_index", rows_));
    }
    return free_rows_.extract(free_rows_.begin()).value();
  }

  void Event(const char* phase, int64_t time_us, int row, const std::string& fields) {
    char begin[128];
    std::snprintf(begin, sizeof begin, R"({"ph": "%s", "ts": %lld, "pid": %d, "tid": %d)", phase,
                  static_cast<long long>(time_us), rank_, row);
    file_.Add(begin + fields + "}");
  }

  std::string MetaEvent(const char* name, int row, const std::string& arguments) const {
    return Object(Field("ph", Quote("M")) + Field("pid", rank_) + Field("tid", row) +
                  Field("name", Quote(name)) + Field("args", Object(arguments)));
  }

  void Meta(const char* name, int row, const std::string& arguments) {
    file_.Add(MetaEvent(name, row, arguments));
  }

  const int rank_;
  std::mutex mutex_;  // keeps the events of the file in the order of their times
  std::set<int> free_rows_;
  int rows_ = 0;          // besides the row of the votes
  int64_t left_out_ = 0;  // requests that began while the file could not keep up
  int64_t told_ = 0;
  TraceFile file_;  // the last member: its thread calls Pulse()
};

Span::~Span() {
  if (ended_us_ != 0) recording_->EndCallback(row_, ended_us_);
}

void Span::Agreed(const Request& request, uint64_t ticket) {
  const char* phase = request.device == Device::kHost ? NameOf(request.kind) : kQueue;
  recording_->Enter(row_, phase, Field("ticket", static_cast<int64_t>(ticket)));
}

void Span::Launched(const Request& request) { recording_->Enter(row_, NameOf(request.kind), ""); }

void Span::End(const Status& status) { ended_us_ = recording_->End(row_, status); }

// Leaked: kernels may run until the process ends.
std::shared_ptr<Timeline> Timeline::OfProcess() {
  static const auto* timeline = new std::shared_ptr<Timeline>(std::make_shared<Timeline>());
  return *timeline;
}

bool Timeline::Start(int file, int rank, int size, bool mark_votes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (recording_) return false;
  recording_ = std::make_shared<Recording>(file, rank, size, mark_votes);
  on_ = true;
  marks_ = mark_votes;
  return true;
}

std::string Timeline::Stop() {
  std::shared_ptr<Recording> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    on_ = false;
    marks_ = false;
    ended = std::exchange(recording_, nullptr);
  }
  return ended ? ended->Close() : "";
}

std::shared_ptr<Recording> Timeline::recording() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return recording_;
}

std::shared_ptr<Span> Timeline::BeginNow(const Request& request, const std::string& set) const {
  const auto now = recording();
  return now ? now->Begin(request, set) : nullptr;
}

void Timeline::MarkVoteNow(const std::string& set, size_t decisions) const {
  if (const auto now = recording()) now->MarkVote(set, decisions);
}

}  // namespace tfddl
