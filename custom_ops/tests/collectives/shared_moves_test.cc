// Broadcast, allgather and alltoall into results in arenas; also if some or all results lie elsewhere.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/collectives/shared_job.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

void Broadcast(Job* job, const std::string& name, int root, const std::vector<Home>& homes, size_t count) {
  const size_t size = homes.size();
  const auto sent = RoughValues(7, count);
  Outcomes outcomes(size);
  std::vector<std::unique_ptr<Memory>> results;
  for (size_t rank = 0; rank < size; ++rank) {
    results.push_back(std::make_unique<Memory>(job->engines[rank].get(), homes[rank], count * sizeof(float)));
    Request request;
    request.name = name;
    request.kind = Kind::kBroadcast;
    request.signature = name;
    request.root = root;
    // The root's result is its input or a copy of it.
    const bool copied = static_cast<int>(rank) != root || homes[rank] != Home::kArenaInPlace;
    const void* in = sent.data();
    void* out = copied ? results[rank]->data() : const_cast<void*>(in);
    request.buffers.push_back({sent.data(), out, static_cast<int64_t>(count)});
    request.done = outcomes.At(rank);
    job->engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < size; ++rank) {
    if (static_cast<int>(rank) == root && homes[rank] == Home::kArenaInPlace) continue;
    CHECK(Equal(results[rank]->data(), sent));
  }
}

void TestBroadcast(size_t size) {
  Job job(static_cast<int>(size));
  int number = 0;
  for (size_t count : {size_t{0}, size_t{3}, size_t{8192}, size_t{9001}, size_t{250007}}) {
    for (Home odd : {Home::kArena, Home::kArenaInPlace, Home::kElsewhere}) {
      for (Home rest : {Home::kArena, Home::kElsewhere}) {
        for (size_t root : {size_t{0}, size - 1}) {
          std::vector<Home> homes(size, rest);
          homes[1] = odd;
          Broadcast(&job, "b" + std::to_string(number++), static_cast<int>(root), homes, count);
        }
      }
    }
  }
  job.End();
}

// Rows of two tensors. The numbers differ by rank; in an allgather each peer gets equally many.
struct Rows {
  Kind kind;
  size_t unit;
  size_t size;
  bool expected = false;  // equal rows, with outputs in Request::expected
  static constexpr size_t kRow[2] = {3, 1};

  size_t members() const { return kind == Kind::kAllgather ? 2 : 1; }
  size_t Sent(size_t from, size_t to) const {
    if (expected) return unit;
    return kind == Kind::kAllgather ? from * unit : (from + to) % 3 * unit;
  }
  size_t Brought(size_t rank) const {
    if (kind == Kind::kAllgather) return Sent(rank, 0);
    size_t rows = 0;
    for (size_t to = 0; to < size; ++to) rows += Sent(rank, to);
    return rows;
  }
  std::vector<float> Input(size_t rank, size_t member) const {
    return RoughValues(10 * rank + member, Brought(rank) * kRow[member]);
  }
  std::vector<float> Output(size_t rank, size_t member) const {
    std::vector<float> all;
    for (size_t from = 0; from < size; ++from) {
      const auto values = Input(from, member);
      size_t first = 0;
      for (size_t to = 0; kind == Kind::kAlltoall && to < rank; ++to) first += Sent(from, to);
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * kRow[member]);
      all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(Sent(from, rank) * kRow[member]));
    }
    return all;
  }
};

void Exchange(Job* job, const std::string& name, const Rows& rows, const std::vector<Home>& homes) {
  const size_t size = homes.size();
  Outcomes outcomes(size);
  std::vector<std::vector<std::vector<float>>> inputs(size);
  std::vector<std::vector<std::unique_ptr<Memory>>> results(size);
  for (size_t rank = 0; rank < size; ++rank) {
    Engine* const engine = job->engines[rank].get();
    Request request;
    request.name = name;
    request.kind = rows.kind;
    request.signature = name;
    for (size_t member = 0; member < rows.members(); ++member) {
      inputs[rank].push_back(rows.Input(rank, member));
      // Exactly one of the two results lies in the arena.
      const bool turned = member == 1 && homes[rank] != Home::kElsewhere;
      const Home home = turned ? Home::kElsewhere : member == 1 ? Home::kArena : homes[rank];
      const auto bytes = rows.Output(rank, member).size() * sizeof(float);
      results[rank].push_back(std::make_unique<Memory>(engine, home, bytes));
    }
    for (size_t member = 0; member < rows.members(); ++member) {
      const auto& values = inputs[rank][member];
      const auto row = static_cast<int64_t>(Rows::kRow[member]);
      const auto count = static_cast<int64_t>(values.size());
      request.buffers.push_back({values.data(), nullptr, count, count / row, row});
    }
    for (size_t to = 0; rows.kind == Kind::kAlltoall && to < size; ++to) {
      request.splits.push_back(static_cast<int64_t>(rows.Sent(rank, to)));
    }
    if (rows.expected) {
      for (auto& result : results[rank]) request.expected.push_back(result->data());
    }
    request.allocate = [&, rank](const std::vector<int64_t>&, std::vector<void*>* out) {
      CHECK(!rows.expected);
      for (auto& result : results[rank]) out->push_back(result->data());
      return Status();
    };
    request.done = outcomes.At(rank);
    engine->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < size; ++rank) {
    for (size_t member = 0; member < rows.members(); ++member) {
      CHECK(Equal(results[rank][member]->data(), rows.Output(rank, member)));
    }
  }
}

void TestRows(size_t size) {
  Job job(static_cast<int>(size));
  int number = 0;
  for (Kind kind : {Kind::kAllgather, Kind::kAlltoall}) {
    for (size_t unit : {size_t{0}, size_t{1}, size_t{20011}}) {
      for (Home odd : {Home::kArena, Home::kElsewhere}) {
        for (Home rest : {Home::kArena, Home::kElsewhere}) {
          std::vector<Home> homes(size, rest);
          homes[1] = odd;
          Exchange(&job, "r" + std::to_string(number++), {kind, unit, size}, homes);
          if (kind == Kind::kAlltoall) continue;
          Exchange(&job, "r" + std::to_string(number++), {kind, unit, size, true}, homes);
        }
      }
    }
  }
  job.End();
}

// Streaming copies for some rows, plain copies for others.
void TestLargeRows() {
  constexpr size_t kUnit = (kStreamBytes / sizeof(float) / Rows::kRow[0] + 1003) / 2;
  Job::arena_bytes = size_t{32} << 20;
  Job job(3);
  for (Kind kind : {Kind::kAllgather, Kind::kAlltoall}) {
    Exchange(&job, "large" + std::to_string(static_cast<int>(kind)), {kind, kUnit, 3},
             {Home::kArena, Home::kElsewhere, Home::kArena});
  }
  job.End();
  Job::arena_bytes = kArena;
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::Job::over_shm = true;
  tfddl::Job::arena_bytes = tfddl::kArena;
  for (size_t size : {2, 3, 5}) {
    tfddl::TestBroadcast(size);
    tfddl::TestRows(size);
  }
  tfddl::TestLargeRows();
  std::puts("shared moves: ok");
  return 0;
}
