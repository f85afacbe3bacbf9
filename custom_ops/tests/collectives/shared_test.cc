// Allreduce with results in arenas gives the same bits as with messages; also if some or all results lie
// elsewhere.
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/arithmetic/reduce.h"
#include "tests/collectives/shared_job.h"
#include "tests/sanitized.h"
#include "transport/copy.h"
#include "transport/host.h"

namespace tfddl {
namespace {

std::vector<float> Reduced(size_t size, size_t count) {
  std::vector<std::vector<float>> ranks;
  std::vector<const void*> sources;
  for (size_t rank = 0; rank < size; ++rank) ranks.push_back(RoughValues(rank, count));
  for (const auto& values : ranks) sources.push_back(values.data());
  std::vector<float> result(count);
  const Reduction reduction{DataType::kFloat32,     ReduceOp::kAverage,    1.0, 1.0,
                            static_cast<int>(size), static_cast<int>(size)};
  Reduce(reduction, sources.data(), result.data(), static_cast<int64_t>(count));
  return result;
}

Request Average(const std::string& name, size_t count) {
  Request request;
  request.name = name;
  request.op = ReduceOp::kAverage;
  request.signature =
      Signature(Kind::kAllreduce).AddTensor(DataType::kFloat32, {static_cast<int64_t>(count)}).text();
  return request;
}

// `homes`: by rank.
void Allreduce(Job* job, const std::string& name, const std::vector<Home>& homes, size_t count) {
  const size_t size = homes.size();
  const auto expected = Reduced(size, count);
  Outcomes outcomes(size);
  std::vector<std::vector<float>> inputs;
  std::vector<std::unique_ptr<Memory>> results;
  for (size_t rank = 0; rank < size; ++rank) {
    inputs.push_back(RoughValues(rank, count));
    results.push_back(std::make_unique<Memory>(job->engines[rank].get(), homes[rank], count * sizeof(float)));
    const void* in = inputs[rank].data();
    if (homes[rank] == Home::kArenaInPlace && count > 0) {
      std::memcpy(results[rank]->data(), in, count * sizeof(float));
      in = results[rank]->data();
    }
    Request request = Average(name, count);
    request.buffers.push_back({in, results[rank]->data(), static_cast<int64_t>(count)});
    request.done = outcomes.At(rank);
    job->engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < size; ++rank) {
    CHECK(Equal(results[rank]->data(), expected));
    CHECK(homes[rank] == Home::kArenaInPlace || inputs[rank] == RoughValues(rank, count));
  }
}

void TestAllreduce(size_t size) {
  Job job(static_cast<int>(size));
  int number = 0;
  for (size_t count : {size_t{0}, size_t{1}, size_t{8191}, size_t{8192}, size_t{8193}, size_t{100003}}) {
    for (Home odd : {Home::kArena, Home::kArenaInPlace, Home::kElsewhere}) {
      for (Home rest : {Home::kArena, Home::kElsewhere}) {
        std::vector<Home> homes(size, rest);
        homes.back() = odd;
        Allreduce(&job, "x" + std::to_string(number++), homes, count);
      }
    }
  }
  job.End();
}

// Ranges for streaming stores, with a short last piece; one rank reduces in place.
void TestLarge(size_t size) {
  Job::arena_bytes = size_t{24} << 20;
  Job job(static_cast<int>(size));
  for (size_t count : {kStreamBytes / sizeof(float), kStreamBytes / sizeof(float) + 1001}) {
    for (Home second : {Home::kArena, Home::kArenaInPlace}) {
      std::vector<Home> homes(size, Home::kArena);
      homes[1] = second;
      Allreduce(&job, "large" + std::to_string(count + static_cast<size_t>(second)), homes, count);
    }
  }
  job.End();
  Job::arena_bytes = kArena;
}

// Several collectives of different sizes at once, in a different order on each rank.
void TestManyAtOnce(size_t size) {
  Job job(static_cast<int>(size));
  constexpr size_t kMany = 6;
  Outcomes outcomes(size * kMany);
  std::vector<std::vector<float>> inputs;
  std::vector<std::unique_ptr<Memory>> results;
  for (size_t rank = 0; rank < size; ++rank) {
    for (size_t k = 0; k < kMany; ++k) {
      const size_t which = rank % 2 ? kMany - 1 - k : k, count = 10000 + 30000 * which;
      inputs.push_back(RoughValues(rank, count));
      results.push_back(
          std::make_unique<Memory>(job.engines[rank].get(), Home::kArena, count * sizeof(float)));
      Request request = Average("x" + std::to_string(which), count);
      request.buffers.push_back({inputs.back().data(), results.back()->data(), static_cast<int64_t>(count)});
      request.done = outcomes.At(rank * kMany + k);
      job.engines[rank]->Submit(std::move(request));
    }
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t i = 0; i < results.size(); ++i)
    CHECK(Equal(results[i]->data(), Reduced(size, inputs[i].size())));
  job.End();
}

// A group is packed in the arena, or elsewhere on a rank whose arena is full. The block is freed afterwards.
void TestGroup(size_t size, bool full) {
  Job job(static_cast<int>(size));
  const std::vector<size_t> counts{40000, 0, 3, 50001};
  const size_t total = 90004 * sizeof(float);
  std::shared_ptr<char> taken;
  if (full) taken = job.engines.back()->arena()->Allocate(kArena - total / 2);
  for (int step = 0; step < (kSanitized ? 10 : 50); ++step) {
    Outcomes outcomes(size);
    std::vector<std::vector<std::vector<float>>> members(size);
    for (size_t rank = 0; rank < size; ++rank) {
      Request request = Average("group", 4);
      for (size_t count : counts) members[rank].push_back(RoughValues(rank, count));
      for (auto& values : members[rank]) {
        request.buffers.push_back({values.data(), values.data(), static_cast<int64_t>(values.size())});
      }
      request.done = outcomes.At(rank);
      job.engines[rank]->Submit(std::move(request));
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    for (const auto& rank : members) {
      for (const auto& values : rank) CHECK(Equal(values.data(), Reduced(size, values.size())));
    }
  }
  taken.reset();
  for (auto& engine : job.engines) CHECK(engine->arena()->Allocate(kArena));
  job.End();
}

// Ranks 0 and 2 share a host, and so do ranks 1 and 3. Messages connect the hosts.
void TestTwoHosts() {
  const ShmWorld hosts[2] = {ShmWorld(2, SmallGeometry(), kArena), ShmWorld(2, SmallGeometry(), kArena)};
  MemoryWorld network(4, 3);
  std::vector<std::shared_ptr<Engine>> engines;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<int> local = rank % 2 ? std::vector<int>{-1, 0, -1, 1} : std::vector<int>{0, -1, 1, -1};
    auto transport = MakeHostTransport(hosts[rank % 2].Join(rank / 2), network.Join(rank), local);
    for (int peer = 0; peer < 4; ++peer) {
      CHECK((transport->ArenaOf(peer) != nullptr) == (peer % 2 == rank % 2));
    }
    engines.push_back(std::make_shared<Engine>(std::move(transport)));
  }
  constexpr size_t kCount = 50000;
  Outcomes outcomes(4);
  std::vector<std::vector<float>> inputs;
  std::vector<std::unique_ptr<Memory>> results;
  for (size_t rank = 0; rank < 4; ++rank) {
    inputs.push_back(RoughValues(rank, kCount));
    results.push_back(std::make_unique<Memory>(engines[rank].get(), Home::kArena, kCount * sizeof(float)));
    Request request = Average("x", kCount);
    request.buffers.push_back({inputs[rank].data(), results[rank]->data(), kCount});
    request.done = outcomes.At(rank);
    engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (auto& result : results) CHECK(Equal(result->data(), Reduced(4, kCount)));
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::Job::over_shm = true;
  tfddl::Job::arena_bytes = tfddl::kArena;
  for (size_t size : {2, 3, 5}) {
    tfddl::TestAllreduce(size);
    tfddl::TestManyAtOnce(size);
    tfddl::TestGroup(size, false);
    tfddl::TestGroup(size, true);
  }
  for (size_t size : {2, 3}) tfddl::TestLarge(size);
  tfddl::TestTwoHosts();
  std::puts("shared: ok");
  return 0;
}
