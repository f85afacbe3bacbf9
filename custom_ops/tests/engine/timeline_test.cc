// The timeline: each request is in the file once, its phases in order, with any outcome; and files that are
// stopped, full or too slow.
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "tests/engine/job.h"
#include "tests/engine/timeline_file.h"

namespace tfddl {
namespace {

// Runs `name` on all ranks; the last rank is `late` by some milliseconds.
void Run(Job* job, const std::string& name, int late_ms = 0, bool mismatch = false) {
  const size_t size = job->engines.size();
  std::vector<std::vector<float>> values(size);
  Outcomes outcomes(size);
  for (size_t rank = 0; rank < size; ++rank) {
    values[rank].assign(mismatch && rank == 0 ? 7 : 10, 1.0f);
    if (rank + 1 == size) std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
    job->engines[rank]->Submit(Allreduce(name, &values[rank], outcomes.At(rank)));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok() == !mismatch);
}

void TestPhases(int size) {
  std::vector<TimelineFile> files(static_cast<size_t>(size));
  Job::timelines.clear();
  for (int rank = 0; rank < size; ++rank) {
    Job::timelines.push_back(Started(files[static_cast<size_t>(rank)].descriptor, rank, size, true));
  }
  Job job(size);
  Run(&job, "late \"x\"\n", 30);
  if (size > 1) Run(&job, "differs", 0, true);
  Run(&job, "again");
  Run(&job, "again");
  job.End();
  for (const auto& timeline : Job::timelines) CHECK(timeline->Stop().empty() && timeline->Stop().empty());
  Job::timelines.clear();
  for (int rank = 0; rank < size; ++rank) {
    const auto seen = files[static_cast<size_t>(rank)].Requests();
    CHECK(seen.size() == (size > 1 ? 4u : 3u));
    for (const Seen& one : seen) {
      const bool differs = one.name == "differs";
      CHECK(one.ended && one.error.empty() == !differs);
      CHECK(After(one.arguments, "process_set") == "all ranks" &&
            After(one.arguments, "kind") == "allreduce");
      CHECK(After(one.arguments, "bytes") == (differs && rank == 0 ? "28" : "40"));
      CHECK(After(one.arguments, "pid") == std::to_string(rank));
      std::vector<std::string> phases = {"wait for peers", "allreduce"};
      if (differs) phases.pop_back();
      CHECK(one.phases == phases && one.times.size() == phases.size() + 2);
    }
    CHECK(seen[0].name == "late \\" && seen[0].arguments.find("late \\\"x\\\" ") != std::string::npos);
    const int64_t waited = seen[0].times[2] - seen[0].times[1];
    CHECK(rank + 1 == size || waited >= 30000);
    CHECK(seen.back().name == "again");
    size_t votes = 0, callbacks = 0;
    for (const auto& line : files[static_cast<size_t>(rank)].Lines()) {
      votes += After(line, "name") == "vote";
      callbacks += After(line, "name") == "callback";
    }
    CHECK(votes >= seen.size() && callbacks == seen.size());
  }
}

// A request in flight at the end of a file goes on, and is in no later file. There are as many rows as
// requests in flight at once.
void TestStartAgain() {
  Job::timelines = {std::make_shared<Timeline>(), std::make_shared<Timeline>()};
  Job job(2);
  Run(&job, "before");
  TimelineFile first, second;
  Timeline& timeline = *Job::timelines[0];
  CHECK(timeline.Stop().empty());
  CHECK(timeline.Start(first.descriptor, 0, 2, false));
  std::vector<std::vector<float>> values(4, std::vector<float>(10, 1.0f));
  Outcomes outcomes(4);
  Run(&job, "first");
  for (size_t i = 0; i < 2; ++i) {
    job.engines[0]->Submit(Allreduce("open " + std::to_string(i), &values[i], outcomes.At(i)));
  }
  CHECK(timeline.Stop().empty());
  CHECK(timeline.Start(second.descriptor, 0, 2, false));
  for (size_t i = 0; i < 2; ++i) {
    job.engines[1]->Submit(Allreduce("open " + std::to_string(i), &values[2 + i], outcomes.At(2 + i)));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  Run(&job, "second");
  job.End();
  CHECK(timeline.Stop().empty());
  Job::timelines.clear();
  const auto in_first = first.Requests(), in_second = second.Requests();
  CHECK(in_first.size() == 3 && in_first[0].name == "first" && in_first[0].ended);
  CHECK(!in_first[1].ended && !in_first[2].ended);
  CHECK(After(in_first[1].arguments, "tid") != After(in_first[2].arguments, "tid"));
  CHECK(in_second.size() == 1 && in_second[0].name == "second" && in_second[0].ended);
}

// While a request of a rank waits, the file gets an event each second; without requests it does not grow.
void TestSilence() {
  TimelineFile files[2];
  Job::timelines = {Started(files[0].descriptor, 0, 2), Started(files[1].descriptor, 1, 2)};
  Job job(2);
  Run(&job, "late", 2300);
  job.End();
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(Job::timelines[static_cast<size_t>(rank)]->Stop().empty());
    std::vector<int64_t> signs;
    for (const auto& line : files[rank].Lines()) {
      if (After(line, "name") == "in flight") signs.push_back(std::stoll(After(line, "ts")));
    }
    const auto seen = files[rank].Requests();
    CHECK(seen.size() == 1);
    for (size_t i = 0; i < signs.size(); ++i) {
      CHECK(signs[i] >= seen[0].times.front() && signs[i] <= seen[0].times.back());
      CHECK(i == 0 || signs[i] - signs[i - 1] >= 1000000);
    }
    CHECK(rank == 1 || (!signs.empty() && signs.back() >= seen[0].times.front() + 1000000));
  }
  Job::timelines.clear();
}

// A file that cannot be written: requests still run and are counted, and the requests in the file are
// complete.
void TestTooSlow() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  auto timeline = Started(ends[1], 0, 1);
  const std::string name(1 << 20, 'n');
  Request request;
  request.name = name;
  request.kind = Kind::kBarrier;
  int recorded = 0;
  for (int i = 0; i < 60; ++i) {
    const auto span = timeline->Begin(request, "");
    if (span) span->End(Status());
    recorded += span != nullptr;
  }
  CHECK(recorded >= 15 && recorded < 60);
  std::string text;
  std::thread reader([&] {
    char bytes[1 << 16];
    for (ssize_t count; (count = read(ends[0], bytes, sizeof bytes)) > 0;) text.append(bytes, bytes + count);
  });
  CHECK(timeline->Stop().empty());
  reader.join();
  close(ends[0]);
  size_t whole = 0;
  const std::string mark = "\"wait for peers\"";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) ++whole;
  CHECK(whole == static_cast<size_t>(recorded));
  CHECK(text.find("\"left_out\": " + std::to_string(60 - recorded)) != std::string::npos);
}

void TestFull() {
  const int file = open("/dev/full", O_WRONLY);
  CHECK(file >= 0);
  Job::timelines = {Started(file, 0, 1)};
  Job job(1);
  Run(&job, "x");
  job.End();
  CHECK(Job::timelines[0]->Stop() == "No space left on device");
  Job::timelines.clear();
}

// Threads submit while the timeline is started and stopped.
void TestStorm() {
  Job::timelines = {std::make_shared<Timeline>()};
  Job job(1);
  std::vector<std::thread> threads;
  std::atomic<bool> end{false};
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      while (!end) {
        std::vector<float> values(10, 1.0f);
        Outcomes outcomes(1);
        job.engines[0]->Submit(Allreduce("n" + std::to_string(thread), &values, outcomes.At(0)));
        CHECK(outcomes.Wait()[0].ok());
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    TimelineFile file;
    CHECK(Job::timelines[0]->Start(file.descriptor, 0, 1, true));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(Job::timelines[0]->Stop().empty());
    file.Requests();
  }
  end = true;
  for (auto& thread : threads) thread.join();
  job.End();
  Job::timelines.clear();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {1, 2, 3}) tfddl::TestPhases(size);
  tfddl::TestStartAgain();
  tfddl::TestSilence();
  tfddl::TestTooSlow();
  tfddl::TestFull();
  tfddl::TestStorm();
  std::puts("timeline: ok");
  return 0;
}
