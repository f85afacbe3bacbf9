// Engines as threads of one process: order, sizes, errors, sequences, shutdown.
#include <algorithm>
#include <random>

#include "tests/engine/job.h"

namespace tfddl {
namespace {

// Each rank submits the same names in another order; all sums are right, for several steps.
void TestAnyOrder(int size, int names, int64_t count, int max_delay, size_t capacity) {
  EngineOptions options;
  options.plan_capacity = capacity;
  Job job(size, max_delay, options);
  std::mt19937 random(static_cast<unsigned>(size));
  for (int step = 0; step < 3; ++step) {
    const auto total = static_cast<size_t>(size * names);
    std::vector<std::vector<float>> values(total);
    Outcomes outcomes(total);
    for (int rank = 0; rank < size; ++rank) {
      std::vector<int> order(static_cast<size_t>(names));
      for (int name = 0; name < names; ++name) order[static_cast<size_t>(name)] = name;
      std::shuffle(order.begin(), order.end(), random);
      for (int name : order) {
        const auto index = static_cast<size_t>(rank * names + name);
        values[index].assign(static_cast<size_t>(count), static_cast<float>((rank + 1) * (name + 1) + step));
        job.engines[static_cast<size_t>(rank)]->Submit(
            Allreduce("n" + std::to_string(name), &values[index], outcomes.At(index)));
      }
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    for (int rank = 0; rank < size; ++rank) {
      for (int name = 0; name < names; ++name) {
        const auto expected = static_cast<float>(size * (size + 1) / 2 * (name + 1) + size * step);
        for (float value : values[static_cast<size_t>(rank * names + name)]) CHECK(value == expected);
      }
    }
  }
  const auto votes = job.engines[0]->recorder().counters.votes.load();
  CHECK(votes <= static_cast<uint64_t>(3 * names * size));
  job.End();
}

// The ranks disagree on one name: all get the same error, and the next request of this name works.
void TestMismatch(int size) {
  Job job(size, 3);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> values(static_cast<size_t>(size));
    Outcomes outcomes(values.size());
    for (size_t rank = 0; rank < values.size(); ++rank) {
      values[rank].assign(rank == 0 ? 3 : 4, 1.0f);
      job.engines[rank]->Submit(Allreduce("x", &values[rank], outcomes.At(rank)));
    }
    for (const Status& status : outcomes.Wait()) {
      CHECK(status.code() == Code::kFailedPrecondition);
      const std::string others = size == 2 ? "rank 1" : "ranks 1, 2";
      CHECK(status.message().find("rank 0: float32 [3]; " + others) != std::string::npos);
    }
    std::vector<std::vector<float>> good(values.size(), std::vector<float>(5, 1.0f));
    Outcomes fine(good.size());
    for (size_t rank = 0; rank < good.size(); ++rank) {
      job.engines[rank]->Submit(Allreduce("x", &good[rank], fine.At(rank)));
    }
    for (const Status& status : fine.Wait()) CHECK(status.ok());
    for (const auto& value : good) CHECK(value[4] == static_cast<float>(size));
  }
  job.End();
}

// An agreed error ends the step on all ranks: its waiting requests fail, later ones are refused.
void TestFailedStep() {
  Job job(2);
  std::vector<std::vector<float>> bad = {std::vector<float>(3), std::vector<float>(4)};
  std::vector<float> lonely(2), late(2);
  Outcomes outcomes(3), refused(1);
  auto submit = [&](size_t rank, Request request) {
    request.step = 7 + static_cast<int64_t>(rank);  // each rank numbers its steps by itself
    job.engines[rank]->Submit(std::move(request));
  };
  submit(0, Allreduce("only on rank 0", &lonely, outcomes.At(0)));
  submit(0, Allreduce("bad", &bad[0], outcomes.At(1)));
  submit(1, Allreduce("bad", &bad[1], outcomes.At(2)));
  const auto& statuses = outcomes.Wait();
  CHECK(statuses[0].code() == Code::kCancelled);
  CHECK(statuses[1].code() == Code::kFailedPrecondition);
  CHECK(statuses[2].code() == Code::kFailedPrecondition);
  submit(1, Allreduce("only on rank 0", &late, refused.At(0)));
  CHECK(refused.Wait()[0].code() == Code::kCancelled);
  job.End();
}

// Buckets of a sequence: one vote, any order of submission, and the next sequence of this name right behind.
void TestSequence(int size) {
  constexpr int kBuckets = 5;
  Job job(size, 5);
  std::mt19937 random(3);
  const uint64_t steps = 4;
  for (uint64_t step = 0; step < steps; ++step) {
    const auto total = static_cast<size_t>(size * kBuckets);
    std::vector<std::vector<float>> values(total, std::vector<float>(100000, 1.0f));
    Outcomes outcomes(total);
    for (int rank = 0; rank < size; ++rank) {
      std::vector<int> order = {0, 1, 2, 3, 4};
      std::shuffle(order.begin(), order.end(), random);
      for (int bucket : order) {
        const auto index = static_cast<size_t>(rank * kBuckets + bucket);
        Request request = Allreduce("gradients", &values[index], outcomes.At(index));
        request.bucket = bucket;
        request.buckets = kBuckets;
        job.engines[static_cast<size_t>(rank)]->Submit(std::move(request));
      }
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    for (const auto& value : values) CHECK(value.front() == size && value.back() == size);
  }
  CHECK(job.engines[0]->recorder().counters.votes.load() == steps);
  job.End();
}

// One rank leaves: waiting and later requests of the others fail, and name this rank.
void TestShutdownByOne() {
  Job job(3, 2);
  std::vector<float> waiting(3), later(3);
  Outcomes outcomes(1), refused(1);
  job.engines[0]->Submit(Allreduce("x", &waiting, outcomes.At(0)));
  job.watchdogs[2]->AnnounceShutdown(30);
  CHECK(job.engines[2]->Shutdown(30));  // although rank 1 is idle
  const Status status = outcomes.Wait()[0];
  CHECK(status.code() == Code::kUnknown);
  CHECK(status.message().find("rank 2 has shut down") != std::string::npos);
  job.engines[0]->Submit(Allreduce("y", &later, refused.At(0)));
  CHECK(refused.Wait()[0].message().find("rank 2") != std::string::npos);
  job.End();
}

// A rank that submits a name twice gets an error, the others do not.
void TestDuplicate() {
  Job job(2);
  std::vector<std::vector<float>> values(3, std::vector<float>(2, 1.0f));
  Outcomes first(2), second(1);
  job.engines[0]->Submit(Allreduce("x", &values[0], first.At(0)));
  job.engines[0]->Submit(Allreduce("x", &values[1], second.At(0)));
  CHECK(second.Wait()[0].code() == Code::kInvalidArgument);
  job.engines[1]->Submit(Allreduce("x", &values[2], first.At(1)));
  for (const Status& status : first.Wait()) CHECK(status.ok());
  job.End();
}

// A cancelled step fails the job on all ranks, also on a rank that waits for another request.
void TestCancel() {
  Job job(3);
  std::vector<float> a(2), b(2);
  Outcomes outcomes(2);
  job.engines[0]->Submit(Allreduce("a", &a, outcomes.At(0)));
  job.engines[1]->Submit(Allreduce("b", &b, outcomes.At(1)));
  job.engines[0]->Cancel("a");
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.code() == Code::kUnknown);
    CHECK(status.message().find("rank 0") != std::string::npos);
  }
}

// A rank that never submits is named in the error that ends the wait.
void TestStall() {
  Job job(3, 0, {}, {0.2, 0.6, 0});
  std::vector<std::vector<float>> values(2, std::vector<float>(2));
  Outcomes outcomes(2);
  job.engines[0]->Submit(Allreduce("x", &values[0], outcomes.At(0)));
  job.engines[2]->Submit(Allreduce("x", &values[1], outcomes.At(1)));
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.message().find("rank 1 has not submitted it. All ranks: ranks 0, 2") != std::string::npos);
  }
}

void TestBroadcastAndAllgather(int size) {
  Job job(size, 4);
  const auto ranks = static_cast<size_t>(size);
  const int root = size - 1;
  std::vector<std::vector<float>> sent(ranks), parts(ranks), gathered(ranks);
  Outcomes outcomes(2 * ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    sent[rank].assign(300000, static_cast<float>(rank));
    Request broadcast = Allreduce("b", &sent[rank], outcomes.At(rank));
    broadcast.kind = Kind::kBroadcast;
    broadcast.root = root;
    parts[rank].assign(2 * rank, static_cast<float>(rank));  // rank 0 brings no rows
    Request allgather = Allreduce("g", &parts[rank], outcomes.At(ranks + rank));
    allgather.kind = Kind::kAllgather;
    allgather.signature = "collective=allgather|tensor=float32 [?, 2]";
    allgather.buffers[0].rows = static_cast<int64_t>(rank);
    allgather.buffers[0].row = 2;
    allgather.allocate = [&, rank](const std::vector<int64_t>& rows, std::vector<void*>* out) {
      int64_t total = 0;
      for (int64_t count : rows) total += count;
      gathered[rank].resize(static_cast<size_t>(2 * total));
      out->push_back(gathered[rank].data());
      return Status();
    };
    job.engines[rank]->Submit(std::move(broadcast));
    job.engines[rank]->Submit(std::move(allgather));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  std::vector<float> expected;
  for (size_t rank = 0; rank < ranks; ++rank)
    expected.insert(expected.end(), 2 * rank, static_cast<float>(rank));
  for (size_t rank = 0; rank < ranks; ++rank) {
    CHECK(std::all_of(sent[rank].begin(), sent[rank].end(),
                      [&](float v) { return v == static_cast<float>(root); }));
    CHECK(gathered[rank] == expected);
  }
  job.End();
}

// Values whose sum depends on the order of addition, reduced by engines over any transport.
std::vector<std::vector<float>> Sums(int size, int64_t count) {
  Job job(size);
  std::vector<std::vector<float>> values(static_cast<size_t>(size));
  Outcomes outcomes(values.size());
  for (size_t rank = 0; rank < values.size(); ++rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int64_t i = 0; i < count; ++i) values[rank].push_back(static_cast<float>(random()) * 1e-5f);
    Request request = Allreduce("x", &values[rank], outcomes.At(rank));
    request.op = ReduceOp::kAverage;
    request.prescale = 1.0 / 3;
    job.engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  job.End();
  return values;
}

// The result has the same bits on all ranks, over both transports, for any length of the pieces.
void TestSameBits(int size, int64_t count) {
  Job::over_shm = false;
  const auto expected = Sums(size, count);
  for (const auto& value : expected) CHECK(value == expected[0]);
  Job::over_shm = true;
  const ShmGeometry geometry = Job::geometry;
  for (size_t piece : {size_t{1} << 10, size_t{8} << 10, size_t{64} << 10}) {
    Job::geometry.slot_bytes = piece;
    CHECK(Sums(size, count) == expected);
  }
  Job::geometry = geometry;
  Job::over_shm = false;
}

void TestAll() {
  for (int size : {1, 2, 3, 4, 5}) {
    TestAnyOrder(size, 6, 1000, 6, 4096);
    TestAnyOrder(size, 6, 200001, 0, 4096);
    TestSequence(size);
    TestBroadcastAndAllgather(size);
  }
  TestAnyOrder(3, 20, 10, 3, 4);  // far more names than the plan holds
  for (int size : {2, 3}) TestMismatch(size);
  TestFailedStep();
  TestShutdownByOne();
  TestDuplicate();
  TestCancel();
  TestStall();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::OverBothTransports(tfddl::TestAll);
  for (int size : {2, 3, 5}) {
    for (int64_t count : {1, 1000, 20001, 300007}) tfddl::TestSameBits(size, count);
  }
  tfddl::TestAnyOrder(64, 2, 500, 0, 4096);
  std::puts("engine: ok");
  return 0;
}
