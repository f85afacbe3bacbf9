// Ranks that join early, late and in any order; how a join ends.
#include <algorithm>
#include <random>

#include "tests/engine/join_job.h"

namespace tfddl {
namespace {

// Each rank runs another number of steps, with several names in any order, then joins; in several epochs.
void TestUneven(int size, int max_delay, size_t capacity) {
  EngineOptions options;
  options.plan_capacity = capacity;
  Job job(size, max_delay, options);
  constexpr int kEpochs = 3, kNames = 3;
  std::mt19937 random(static_cast<unsigned>(size + max_delay));
  std::vector<std::vector<int>> steps(kEpochs);
  for (auto& epoch : steps) {
    for (int rank = 0; rank < size; ++rank) epoch.push_back(static_cast<int>(random() % 6));
  }
  std::vector<std::vector<int32_t>> last(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Engine& engine = *job.engines[static_cast<size_t>(rank)];
      std::mt19937 own(static_cast<unsigned>(rank));
      for (const auto& epoch : steps) {
        for (int step = 0; step < epoch[static_cast<size_t>(rank)]; ++step) {
          std::vector<std::vector<float>> values(kNames,
                                                 std::vector<float>(200, static_cast<float>(1 << rank)));
          std::vector<int> order = {0, 1, 2};
          std::shuffle(order.begin(), order.end(), own);
          Outcomes outcomes(kNames);
          for (int name : order) {
            const auto i = static_cast<size_t>(name);
            engine.Submit(Allreduce("n" + std::to_string(name), &values[i], outcomes.At(i)));
          }
          CheckOk(outcomes.Wait());
          int expected = 0;
          for (int other = 0; other < size; ++other) {
            if (epoch[static_cast<size_t>(other)] > step) expected += 1 << other;
          }
          for (const auto& value : values) CHECK(value.front() == static_cast<float>(expected));
        }
        int32_t who = -1;
        Outcomes joined(1);
        engine.Submit(Join(&who, joined.At(0)));
        CheckOk(joined.Wait());
        last[static_cast<size_t>(rank)].push_back(who);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& other : last) CHECK(other == last[0]);
  for (size_t epoch = 0; epoch < steps.size(); ++epoch) {
    const auto& counts = steps[epoch];
    // A rank with fewer steps cannot be the last.
    CHECK(counts[static_cast<size_t>(last[0][epoch])] == *std::max_element(counts.begin(), counts.end()));
  }
  job.End();
}

// A sequence that begins before a rank's join finishes with this rank; later sequences run without it.
void TestSequences() {
  constexpr int kBuckets = 3;
  Job job(3, 4);
  std::vector<std::vector<float>> values(3 * kBuckets, std::vector<float>(30000, 1.0f));
  Outcomes first(2 + kBuckets * 2), rest(1);
  int32_t last[3];
  Outcomes joins(3), refused(2);
  const auto bucket = [&](size_t rank, int number, std::function<void(const Status&)> done) {
    Request request =
        Allreduce("gradients", &values[rank * kBuckets + static_cast<size_t>(number)], std::move(done));
    request.bucket = number;
    request.buckets = kBuckets;
    job.engines[rank]->Submit(std::move(request));
  };
  bucket(2, 1, first.At(0));
  bucket(2, 0, first.At(1));
  job.engines[2]->Submit(Join(&last[2], joins.At(2)));  // has to wait for the last bucket
  std::vector<float> other(2);
  job.engines[2]->Submit(Allreduce("other", &other, refused.At(0)));
  job.engines[2]->Submit(Join(&last[2], refused.At(1)));
  CHECK(refused.Wait()[0].code() == Code::kInvalidArgument);
  CHECK(refused.Wait()[0].message().find("'other' was called on rank 2 after hvd.join()") !=
        std::string::npos);
  CHECK(refused.Wait()[1].message().find("while an earlier call still waits") != std::string::npos);
  for (size_t rank : {0, 1}) {
    for (int number = 0; number < kBuckets; ++number) {
      bucket(rank, number, first.At(2 + rank * kBuckets + static_cast<size_t>(number)));
      if (number == 1 && rank == 1) bucket(2, 2, rest.At(0));
    }
  }
  CheckOk(first.Wait());
  CheckOk(rest.Wait());
  for (const auto& value : values) CHECK(value.front() == 3 && value.back() == 3);
  for (int step = 0; step < 2; ++step) {  // without rank 2
    Outcomes outcomes(2 * kBuckets);
    for (size_t rank : {0, 1}) {
      for (int number = kBuckets - 1; number >= 0; --number) {
        bucket(rank, number, outcomes.At(rank * kBuckets + static_cast<size_t>(number)));
      }
    }
    CheckOk(outcomes.Wait());
    for (size_t i = 0; i < 2 * kBuckets; ++i) CHECK(values[i].back() == (step == 0 ? 6 : 12));
  }
  for (size_t rank : {0, 1}) job.engines[rank]->Submit(Join(&last[rank], joins.At(rank)));
  CheckOk(joins.Wait());
  std::vector<std::vector<float>> next(
      3, std::vector<float>(30000, 1.0f));  // tickets are still equal on all ranks
  Outcomes after(3);
  for (size_t rank : {0, 1, 2}) job.engines[rank]->Submit(Allreduce("next", &next[rank], after.At(rank)));
  CheckOk(after.Wait());
  for (const auto& value : next) CHECK(value.back() == 3);
  job.End();
}

// Ranks that ask for different divisors all get an error. The next join works.
void TestDispute() {
  Job job(2, 3);
  for (int round = 0; round < 3; ++round) {
    std::vector<int32_t> last(2);
    Outcomes outcomes(last.size());
    for (size_t rank = 0; rank < last.size(); ++rank) {
      job.engines[rank]->Submit(
          Join(&last[rank], outcomes.At(rank), rank == 1 ? AverageOver::kActive : AverageOver::kSize));
    }
    for (const Status& status : outcomes.Wait()) {
      CHECK(status.code() == Code::kFailedPrecondition);
      CHECK(status.message().find("rank 0: average_over='size'; rank 1: average_over='active'") !=
            std::string::npos);
    }
    JoinAll(&job, AverageOver::kActive);
  }
  job.End();
}

// The active ranks disagree on a name: the error quotes only these, and the next collective works.
void TestMismatchWithout() {
  Job job(3, 3);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<float>> values = {{1, 1, 1}, {1, 1, 1, 1}};
    std::vector<std::pair<size_t, Request>> requests;
    requests.emplace_back(0, Allreduce("x", &values[0], nullptr));
    requests.emplace_back(2, Allreduce("x", &values[1], nullptr));
    for (const Status& status : RunWithout(&job, std::move(requests))) {
      CHECK(status.code() == Code::kFailedPrecondition);
      CHECK(status.message().find("arguments: rank 0: float32 [3]; rank 2: float32 [4]. ") !=
            std::string::npos);
    }
    std::vector<std::vector<float>> good(3, std::vector<float>(5, 1.0f));
    Outcomes fine(3);
    for (size_t rank = 0; rank < 3; ++rank)
      job.engines[rank]->Submit(Allreduce("x", &good[rank], fine.At(rank)));
    CheckOk(fine.Wait());
    for (const auto& value : good) CHECK(value[4] == 3);
  }
  job.End();
}

// A join ends when a rank leaves, fails, or cancels its step.
void TestEnds() {
  for (const std::string how : {"leave", "fail", "cancel"}) {
    Job job(3, 2);
    std::vector<int32_t> last(3);
    Outcomes waiting(2), late(1);
    for (size_t rank : {0, 1}) job.engines[rank]->Submit(Join(&last[rank], waiting.At(rank)));
    if (how == "leave") {
      job.watchdogs[2]->AnnounceShutdown(30);
      CHECK(job.engines[2]->Shutdown(30));
    } else if (how == "fail") {
      job.engines[2]->Fail("rank 2 is out of order");
    } else {
      job.engines[0]->Cancel(kJoinKey);
    }
    const std::string cause = how == "leave"  ? "rank 2 has shut down tfddl"
                              : how == "fail" ? "rank 2 is out of order"
                                              : "rank 0: the step that 'hvd.join()' belongs to";
    for (const Status& status : waiting.Wait()) {
      CHECK(status.code() == Code::kUnknown);
      CHECK(status.message().find(cause) != std::string::npos);
    }
    job.engines[2]->Submit(Join(&last[2], late.At(0)));
    CHECK(late.Wait()[0].code() == Code::kUnknown);
    if (how == "leave") job.End();
  }
}

// The watchdog does not report a joined rank as missing, however long the others go on; it reports a rank
// that neither joins nor submits.
void TestStalls() {
  Job job(3, 0, {}, {0.2, 2, 0});
  std::vector<int32_t> last(3);
  std::vector<float> values(2);
  Outcomes joins(2), stalled(1);
  job.engines[0]->Submit(Join(&last[0], joins.At(0)));
  for (int step = 0; step < 45; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::vector<float> mine(2), theirs(2);
    Outcomes outcomes(2);
    job.engines[1]->Submit(Allreduce("x", &mine, outcomes.At(0)));
    job.engines[2]->Submit(Allreduce("x", &theirs, outcomes.At(1)));
    CheckOk(outcomes.Wait());
  }
  CHECK(!job.engines[0]->failure());
  job.engines[1]->Submit(Allreduce("x", &values, stalled.At(0)));
  const std::string message = stalled.Wait()[0].message();
  CHECK(message.find("rank 2 has not submitted it; rank 0 has joined. All ranks: rank 0: in hvd.join()") !=
        std::string::npos);
  joins.At(1)(Status());
  CHECK(joins.Wait()[0].message() == message);
}

void TestAll() {
  for (int size : {1, 2, 3, 4, 5}) {
    TestUneven(size, 0, 4096);
    TestUneven(size, 6, 2);
  }
  TestSequences();
  TestDispute();
  TestMismatchWithout();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::OverBothTransports(tfddl::TestAll);
  tfddl::TestEnds();
  tfddl::TestStalls();
  std::puts("join: ok");
  return 0;
}
