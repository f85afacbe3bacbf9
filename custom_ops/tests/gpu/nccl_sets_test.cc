// Process sets that share GPUs: in whatever order the ranks submit, the orders of all GPUs are compatible.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "gpu/nccl_order.h"
#include "tests/double/control.h"
#include "tests/gpu/gpu_job.h"

namespace tfddl {
namespace {

using Ranks = std::vector<size_t>;
using Floats = std::unique_ptr<GpuTensor<float>>;

constexpr size_t kRanks = 3;

// The set of all ranks, and further sets in the same processes.
struct GpuSets {
  explicit GpuSets(std::vector<Ranks> further) : ranks(std::move(further)) {
    ranks.insert(ranks.begin(), {0, 1, 2});
    jobs.push_back(std::make_unique<GpuJob>(kRanks));
  }

  // As hvd.add_process_set() does before it adds the first set.
  void Add() {
    Outcomes outcomes(kRanks);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      Request share;
      share.name = "share";
      share.kind = Kind::kBarrier;
      share.shares_gpu = true;
      share.done = outcomes.At(rank);
      jobs[0]->job->engines[rank]->Submit(std::move(share));
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    for (size_t set = 1; set < ranks.size(); ++set) {
      EngineOptions options;
      options.set = "process set " + std::to_string(set);
      options.shares_gpu = true;
      std::vector<int> gpus;
      std::vector<std::shared_ptr<DevicePlane>> planes;
      for (size_t rank : ranks[set]) {
        gpus.push_back(static_cast<int>(rank));
        planes.push_back(jobs[0]->planes[rank]);
        options.members.push_back(static_cast<int>(rank));
      }
      const auto size = static_cast<int>(gpus.size());
      jobs.push_back(std::make_unique<GpuJob>(size, std::move(gpus), std::move(options), std::move(planes)));
    }
  }

  void End() {
    for (auto& job : jobs) job->End();
  }

  std::vector<Ranks> ranks;  // by set
  std::vector<std::unique_ptr<GpuJob>> jobs;
};

struct Call {
  size_t set;
  size_t name;
};

// The input of `member` of the call's set, and the sum of all inputs.
float Brings(const Call& call, size_t member) {
  return static_cast<float>(1 + member + 10 * call.name + 3 * call.set);
}
float Total(const GpuSets& sets, const Call& call) {
  float total = 0;
  for (size_t member = 0; member < sets.ranks[call.set].size(); ++member) total += Brings(call, member);
  return total;
}

Request SumOf(const Call& call, float* x, int64_t count, std::function<void(const Status&)> done) {
  Request request =
      GpuRequest("n" + std::to_string(call.name), Kind::kAllreduce, DataType::kFloat32, std::move(done));
  request.buffers.push_back({x, x, count});
  return request;
}

// A rank's program: all collectives of its sets, in random order.
void Run(GpuSets& sets, size_t rank, size_t names, unsigned seed) {
  std::vector<Call> calls;
  for (size_t set = 0; set < sets.jobs.size(); ++set) {
    const auto& members = sets.ranks[set];
    if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
    for (size_t name = 0; name < names; ++name) calls.push_back({set, name});
  }
  std::shuffle(calls.begin(), calls.end(), std::mt19937(seed));
  fake::UseDevice(static_cast<int>(rank));
  Outcomes outcomes(calls.size());
  std::vector<Floats> x;
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& members = sets.ranks[calls[i].set];
    const auto member =
        static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
    x.push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(50, Brings(calls[i], member))));
    sets.jobs[calls[i].set]->Submit(member, SumOf(calls[i], x.back()->get(), 50, outcomes.At(i)));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (float value : x[i]->Read(sets.jobs[0]->streams[rank])) CHECK(value == Total(sets, calls[i]));
  }
}

void RunAll(GpuSets& sets, size_t names, unsigned seed) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { Run(sets, rank, names, seed + static_cast<unsigned>(rank)); });
  }
  for (auto& thread : threads) thread.join();
}

// At first the set of all ranks shares no GPU.
void TestOverlapping(std::vector<Ranks> further) {
  tfddl_fake_reset();
  GpuSets sets(std::move(further));
  RunAll(sets, 3, 1);
  sets.Add();
  for (unsigned round = 0; round < 8; ++round) RunAll(sets, 4, 100 * round);
  sets.End();
}

// A collective without a final time blocks only collectives with a later time. No collective gets a time
// before that of a started one.
void TestTimes() {
  NcclOrder order;
  int a, b, c;
  CHECK(order.Propose(&a, "A", 4) == 1);
  CHECK(order.Propose(&b, "B", 4) == 2);
  CHECK(!order.IsNext(&a) && !order.IsNext(&b));
  order.Settle(&b, 2);
  CHECK(!order.IsNext(&b));  // `a` may get the time 1
  order.Settle(&a, 7);
  CHECK(order.IsNext(&b) && !order.IsNext(&a));
  order.Leave(&b);
  CHECK(order.IsNext(&a));
  CHECK(order.Propose(&c, "B", 6) == 8);
  order.Append(&b);
  CHECK(order.IsNext(&b) && !order.IsNext(&a));
  order.Leave(&b);
  order.Settle(&c, 8);
  CHECK(order.IsNext(&a) && !order.IsNext(&c));
  order.Leave(&a);
  CHECK(order.IsNext(&c));
}

// If times are equal, the names of the sets decide, then the tags.
void TestEqualTimes() {
  NcclOrder order;
  int a, b, c;
  order.Propose(&c, "B", 4);
  order.Propose(&b, "A", 8);
  order.Propose(&a, "A", 6);
  for (int* each : {&a, &b, &c}) order.Settle(each, 9);
  for (int* each : {&a, &b, &c}) {
    CHECK(order.IsNext(each));
    order.Leave(each);
  }
}

// A joined rank takes no part in collectives and in their order.
void TestJoined() {
  tfddl_fake_reset();
  GpuSets sets({{0, 1}, {1, 2}});
  sets.Add();
  Outcomes joins(kRanks);
  std::vector<int32_t> last(kRanks);
  auto join = [&](size_t rank) {
    Request request;
    request.name = kJoinKey;
    request.kind = Kind::kJoin;
    request.buffers.push_back({nullptr, &last[rank], 1});
    request.done = joins.At(rank);
    sets.jobs[0]->job->engines[rank]->Submit(std::move(request));
  };
  join(2);
  std::vector<Call> calls;
  for (size_t name = 0; name < 6; ++name) calls.push_back({name % 3, name});
  std::vector<Floats> x;
  std::vector<std::pair<size_t, Call>> expected;
  Outcomes outcomes(12);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (const Call& call : calls) {
      const auto& members = sets.ranks[call.set];
      const auto at = std::find(members.begin(), members.end(), rank);
      if (at == members.end() || (call.set == 0 && rank == 2)) continue;
      fake::UseDevice(static_cast<int>(rank));
      x.push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(9, 1)));
      sets.jobs[call.set]->Submit(static_cast<size_t>(at - members.begin()),
                                  SumOf(call, x.back()->get(), 9, outcomes.At(expected.size())));
      expected.emplace_back(rank, call);
    }
  }
  CHECK(expected.size() == 12);
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t i = 0; i < x.size(); ++i) {
    fake::UseDevice(static_cast<int>(expected[i].first));
    for (float value : x[i]->Read(sets.jobs[0]->streams[expected[i].first])) CHECK(value == 2);
  }
  join(0);
  join(1);
  for (const Status& status : joins.Wait()) CHECK(status.ok());
  sets.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestTimes();
  tfddl::TestEqualTimes();
  tfddl::TestOverlapping({{0, 1}, {1, 2}, {0, 2}});
  tfddl::TestOverlapping({{0, 1}, {1}, {0, 1, 2}});
  tfddl::TestJoined();
  std::puts("nccl_sets: ok");
  return 0;
}
