// Several process sets: engines side by side in each process, under one watchdog.
#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "core/engine/gather.h"
#include "core/process/process.h"
#include "tests/engine/job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

using Ranks = std::vector<int>;

// A job in which each pair of ranks, and each rank alone, may be a set.
struct SetsJob : Job {
  explicit SetsJob(int size, std::vector<Ranks> groups, WatchdogOptions watch = {})
      : Job(size, 2, {}, watch), ranks(std::move(groups)), of_set(ranks.size() + 1) {
    of_set[0] = engines;
    for (size_t set = 1; set < of_set.size(); ++set) {
      const Ranks& members = ranks[set - 1];
      worlds.push_back(std::make_unique<MemoryWorld>(static_cast<int>(members.size()), 2));
      of_set[set].resize(engines.size());
      for (int rank = 0; rank < size; ++rank) {
        const auto it = std::find(members.begin(), members.end(), rank);
        auto& engine = of_set[set][static_cast<size_t>(rank)];
        if (it != members.end()) {
          EngineOptions options;
          options.members = members;
          options.set = NameOfSet(static_cast<int>(set), members);
          engine =
              std::make_shared<Engine>(worlds.back()->Join(static_cast<int>(it - members.begin())), options);
        }
        watchdogs[static_cast<size_t>(rank)]->Watch(static_cast<int>(set), members, engine);
      }
    }
  }

  void Leave(size_t rank) {
    watchdogs[rank]->AnnounceShutdown(60);
    for (auto& engines_of_set : of_set) {
      if (engines_of_set[rank]) CHECK(engines_of_set[rank]->Shutdown(60));
    }
  }

  void EndSets() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < engines.size(); ++rank) threads.emplace_back([this, rank] { Leave(rank); });
    for (auto& thread : threads) thread.join();
    watchdogs.clear();
    of_set.clear();
  }

  std::vector<Ranks> ranks;
  std::vector<std::unique_ptr<MemoryWorld>> worlds;
  std::vector<std::vector<std::shared_ptr<Engine>>> of_set;  // by set and rank; null for others
};

float Value(int rank, size_t set) { return static_cast<float>(rank + 1 + 10 * static_cast<int>(set)); }

// All ranks submit in all their sets, each in another order, with the same name in all sets.
void TestOverlapping() {
  SetsJob job(3, {{0, 1}, {0, 2}, {1, 2}, {1}});
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<int, size_t>> calls;
    for (int rank = 0; rank < 3; ++rank) {
      for (size_t set = 0; set < job.of_set.size(); ++set) {
        if (job.of_set[set][static_cast<size_t>(rank)]) calls.emplace_back(rank, set);
      }
    }
    std::shuffle(calls.begin(), calls.end(), random);
    std::vector<std::vector<float>> values(calls.size());
    Outcomes outcomes(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto [rank, set] = calls[i];
      values[i].assign(100, Value(rank, set));
      job.of_set[set][static_cast<size_t>(rank)]->Submit(Allreduce("x", &values[i], outcomes.At(i)));
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    for (size_t i = 0; i < calls.size(); ++i) {
      const size_t set = calls[i].second;
      float expected = 0;
      for (int rank : set == 0 ? Ranks{0, 1, 2} : job.ranks[set - 1]) expected += Value(rank, set);
      CHECK(values[i].front() == expected && values[i].back() == expected);
    }
  }
  job.EndSets();
}

// Errors name the members by their ranks in the job.
void TestMismatchNamesRanksOfTheJob() {
  SetsJob job(4, {{1, 3}});
  std::vector<std::vector<float>> values = {std::vector<float>(3), std::vector<float>(4)};
  Outcomes outcomes(2);
  job.of_set[1][1]->Submit(Allreduce("x", &values[0], outcomes.At(0)));
  job.of_set[1][3]->Submit(Allreduce("x", &values[1], outcomes.At(1)));
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.message().find("rank 1: float32 [3]; rank 3: float32 [4]") != std::string::npos);
  }
  CHECK(job.of_set[1][3]->MemberOf(3) == 1 && job.of_set[1][3]->MemberOf(2) == -1);
  job.EndSets();
}

// A rank that leaves ends its sets; the other sets go on.
void TestLeaver() {
  SetsJob job(3, {{0, 1}, {1, 2}});
  job.Leave(0);
  std::vector<std::vector<float>> values(3, std::vector<float>(5, 1.0f));
  Outcomes outcomes(3);
  job.of_set[1][1]->Submit(Allreduce("x", &values[0], outcomes.At(0)));
  job.of_set[2][1]->Submit(Allreduce("x", &values[1], outcomes.At(1)));
  job.of_set[2][2]->Submit(Allreduce("x", &values[2], outcomes.At(2)));
  const auto& statuses = outcomes.Wait();
  CHECK(statuses[0].message().find("rank 0 has left process set 1 [0, 1]") == 0);
  CHECK(statuses[1].ok() && statuses[2].ok() && values[2][0] == 2.0f);
  job.Leave(1);
  job.Leave(2);
  job.watchdogs.clear();
}

// A failure in one set fails the job: all engines of all ranks raise the reason.
void TestFailure() {
  SetsJob job(3, {{0, 1}, {1, 2}});
  std::vector<float> values(5, 1.0f);
  Outcomes outcomes(1);
  job.of_set[2][2]->Submit(Allreduce("lonely", &values, outcomes.At(0)));
  job.of_set[1][0]->Fail("as a test");
  CHECK(outcomes.Wait()[0].message() == "as a test");
  for (auto& engines : job.of_set) {
    for (auto& engine : engines) {
      while (engine && !engine->failure()) std::this_thread::yield();
    }
  }
  job.watchdogs.clear();
}

// The members of a set wait for different collectives, or one of them never submits: the error at the limit
// names it.
void TestStall() {
  SetsJob job(3, {{0, 2}}, {0.2, 0.4, 0});
  std::vector<float> values(5, 1.0f);
  Outcomes outcomes(1);
  job.of_set[1][0]->Submit(Allreduce("x", &values, outcomes.At(0)));
  const std::string message = outcomes.Wait()[0].message();
  CHECK(message.find("for 'x' of process set 1 [0, 2]; rank 2 has not submitted it") != std::string::npos);
  job.watchdogs.clear();
}

// A rank that leaves waits for the last message of its peers. A peer that leaves later does not wait.
void TestParting() {
  Job job(3, 2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      job.watchdogs[rank]->AnnounceShutdown(60);
      CHECK(job.engines[rank]->Shutdown(60));
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(job.watchdogs[0]->Disconnect(60));
  job.watchdogs[0].reset();
  CHECK(job.watchdogs[1]->Disconnect(60) && job.watchdogs[2]->Disconnect(60));
  Job silent(2);
  silent.watchdogs[1]->Stop();
  CHECK(!silent.watchdogs[0]->Disconnect(0.1));
}

void TestGather() {
  Job job(3, 2);
  std::vector<std::vector<std::string>> all(3);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        all[rank] = GatherTexts(job.engines[rank].get(), "gather", std::string(rank * 1000, 'a'));
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& texts : all) {
      CHECK(texts.size() == 3 && texts[0].empty() && texts[2] == std::string(2000, 'a'));
    }
  }
  job.End();
}

std::unique_ptr<Transport> Alone() { return (new MemoryWorld(1))->Join(0); }

// The table of sets that kernels see.
void TestProcess() {
  std::shared_ptr<Engine> engine;
  CHECK(FindEngine(0, &engine).code() == Code::kFailedPrecondition);
  StartProcess(Alone(), Alone(), {});
  CHECK(FindEngine(1, &engine).code() == Code::kInvalidArgument);
  for (int round = 0; round < 3; ++round) {
    AddSet(1, {0}, Alone());
    AddSet(2, {}, nullptr);
    CHECK(FindEngine(1, &engine).ok());
    std::vector<float> values(5, 1.0f);
    Outcomes outcomes(1);
    engine->Submit(Allreduce("x", &values, outcomes.At(0)));
    CHECK(outcomes.Wait()[0].ok());
    const auto requests = AllCounters()[0].second;
    CHECK(requests == static_cast<uint64_t>(round + 1));
    std::shared_ptr<Engine> none;
    CHECK(FindEngine(2, &none).message().find("rank 0 is not a member of process set 2 []") == 0 && !none);
    CHECK(RemoveSet(1, 30) && RemoveSet(2, 30));
    CHECK(AllCounters()[0].second == requests);
    CHECK(FindEngine(1, &none).message().find("there is no process set 1 any more") == 0);
    Outcomes late(1);
    engine->Submit(Allreduce("x", &values, late.At(0)));
    CHECK(late.Wait()[0].message().find("rank 0 has left process set 1 [0]") == 0);
  }
  AddSet(1, {0}, Alone());
  CHECK(StopProcess(30));
  CHECK(FindEngine(1, &engine).code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestOverlapping();
  tfddl::TestMismatchNamesRanksOfTheJob();
  tfddl::TestLeaver();
  tfddl::TestFailure();
  tfddl::TestStall();
  tfddl::TestParting();
  tfddl::TestGather();
  tfddl::TestProcess();
  std::puts("sets: ok");
  return 0;
}
