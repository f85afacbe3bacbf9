// Measures the cost of agreement: N engines as threads over the in-memory transport, R requests a step.
//
//     cmake --build build/core --target agreement_benchmark && build/core/agreement_benchmark [--json FILE]
//
// Each request is a barrier: a vote without data. In a step, each member submits all its requests and then
// waits for all, like a gradient computation whose buckets are ready at once. Columns:
//
// - votes: per step, average over steps and members. At least 1; more if the first request opened a vote and
//   the others missed it.
// - bytes: the size of a member's message in a vote.
// - messages: sent by a member in a vote: log2 of the members, rounded down, and one or two more unless
//   their number is a power of two.
// - cpu us: processor time of a member in a step, with all its threads and the in-memory transport.
// - step us: wall time of a step, median. The members share the cores of this machine: with many members this
//   column shows their processor time, not the latency.
// - of its own: the estimated latency of a step if each member had its own core and a message took 1 us, as
//   between cores with shared memory: votes x rounds x 1 us + cpu us. For a network, replace the 1 us.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/signature.h"
#include "core/agreement/vote.h"
#include "core/engine/engine.h"
#include "transport/memory.h"

namespace tfddl {
namespace {

class Countdown {
 public:
  void Start(size_t count) { waiting_ = count; }
  void Done(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!status.ok()) {
      std::fprintf(stderr, "a request failed: %s\n", status.message().c_str());
      std::exit(1);
    }
    if (--waiting_ == 0) over_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    over_.wait(lock, [this] { return waiting_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  size_t waiting_ = 0;
};

double CpuMicros() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto micros = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return micros(usage.ru_utime) + micros(usage.ru_stime);
}

double WallMicros() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

struct Row {
  int members, requests, steps;
  double votes, bytes, messages, cpu, step, alone;
};

class Job {
 public:
  explicit Job(int members) : world_(members), members_(members) {
    for (int rank = 0; rank < members; ++rank)
      engines_.push_back(std::make_unique<Engine>(world_.Join(rank)));
  }
  ~Job() {
    for (auto& engine : engines_) engine->Stop();
  }

  Row Measure(int requests, int steps) {
    for (int step = 0; step < 3; ++step) Step(requests);  // warm-up: the plan learns the names
    const double votes = Votes(), cpu = CpuMicros();
    std::vector<double> times;
    for (int step = 0; step < steps; ++step) times.push_back(Step(requests));
    const double each = static_cast<double>(members_) * steps;
    Row row{members_, requests, steps, (Votes() - votes) / each, 0, 0, (CpuMicros() - cpu) / each, 0, 0};
    names_ = std::max(names_, static_cast<size_t>(requests));
    row.bytes = static_cast<double>(VoteRecord::EncodedSize(names_, static_cast<size_t>(members_)));
    double sent = 0;
    for (int rank = 0; rank < members_; ++rank) {
      const Vote vote(rank, members_);
      for (const Vote::Step& one : vote.steps()) sent += one.send;
    }
    row.messages = sent / members_;
    std::nth_element(times.begin(), times.begin() + steps / 2, times.end());
    row.step = times[static_cast<size_t>(steps) / 2];
    row.alone = row.votes * std::ceil(row.messages) + row.cpu;
    return row;
  }

 private:
  double Step(int requests) {
    countdown_.Start(static_cast<size_t>(requests) * engines_.size());
    const double start = WallMicros();
    for (auto& engine : engines_) {
      for (int i = 0; i < requests; ++i) {
        Request request;
        request.name = "request " + std::to_string(i);
        request.kind = Kind::kBarrier;
        request.signature = Signature(request.kind).text();
        request.done = [this](const Status& status) { countdown_.Done(status); };
        engine->Submit(std::move(request));
      }
    }
    countdown_.Wait();
    return WallMicros() - start;
  }

  double Votes() const {
    double votes = 0;
    for (const auto& engine : engines_) votes += static_cast<double>(engine->recorder().counters.votes);
    return votes;
  }

  MemoryWorld world_;
  int members_;
  size_t names_ = 0;  // that the plan has learnt
  Countdown countdown_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

void Print(const std::vector<Row>& rows, const char* path) {
  std::printf("%8s %9s %6s %7s %9s %10s %10s %12s\n", "members", "requests", "votes", "bytes", "messages",
              "cpu us", "step us", "of its own");
  std::FILE* const json = path ? std::fopen(path, "w") : nullptr;
  for (const Row& row : rows) {
    std::printf("%8d %9d %6.2f %7.0f %9.1f %10.1f %10.0f %12.0f\n", row.members, row.requests, row.votes,
                row.bytes, row.messages, row.cpu, row.step, row.alone);
    if (!json) continue;
    std::fprintf(json,
                 "%s{\"members\": %d, \"requests\": %d, \"steps\": %d, \"votes\": %.3f, \"bytes\": %.0f, "
                 "\"messages\": %.2f, \"cpu us\": %.2f, \"step us\": %.1f}",
                 &row == rows.data() ? "[" : ",\n", row.members, row.requests, row.steps, row.votes,
                 row.bytes, row.messages, row.cpu, row.step);
  }
  if (json) std::fputs("]\n", json), std::fclose(json);
}

}  // namespace
}  // namespace tfddl

int main(int argc, char** argv) {
  const char* const path = argc == 3 && std::strcmp(argv[1], "--json") == 0 ? argv[2] : nullptr;
  std::vector<tfddl::Row> rows;
  for (int members : {2, 8, 64, 512}) {
    tfddl::Job job(members);
    for (int requests : {1, 10, 100}) {
      rows.push_back(job.Measure(requests, members > 64 ? 5 : 2000 / members));
    }
  }
  tfddl::Print(rows, path);
  return 0;
}
