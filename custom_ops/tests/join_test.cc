// Ranks that have joined: the others' collectives of every kind and dtype run without them.
#include <algorithm>
#include <random>

#include "core/attendance.h"
#include "core/reduce.h"
#include "tests/job.h"

namespace tfddl {
namespace {

Request Join(int32_t* last, std::function<void(const Status&)> done, AverageOver over = AverageOver::kSize) {
  Request request;
  request.name = kJoinKey;
  request.kind = Kind::kJoin;
  request.average_over = over;
  request.buffers.push_back({nullptr, last, 1});
  request.done = std::move(done);
  return request;
}

// All ranks join; returns who was the last.
int32_t JoinAll(Job* job, AverageOver over = AverageOver::kSize) {
  const size_t ranks = job->engines.size();
  std::vector<int32_t> last(ranks, -1);
  Outcomes outcomes(ranks);
  for (size_t rank = 0; rank < ranks; ++rank)
    job->engines[rank]->Submit(Join(&last[rank], outcomes.At(rank), over));
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (int32_t other : last) CHECK(other == last[0] && other >= 0 && other < static_cast<int32_t>(ranks));
  return last[0];
}

// Runs `requests` on the ranks that have one, while the others have joined; then all join.
std::vector<Status> RunWithout(Job* job, std::vector<std::pair<size_t, Request>> requests,
                               AverageOver over = AverageOver::kSize) {
  const size_t ranks = job->engines.size();
  std::vector<int32_t> last(ranks, -1);
  Outcomes joins(ranks), runs(requests.size());
  std::vector<bool> active(ranks);
  for (auto& [rank, request] : requests) active[rank] = true;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (!active[rank]) job->engines[rank]->Submit(Join(&last[rank], joins.At(rank), over));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].second.done = runs.At(i);
    job->engines[requests[i].first]->Submit(std::move(requests[i].second));
  }
  const std::vector<Status> statuses = runs.Wait();
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (active[rank]) job->engines[rank]->Submit(Join(&last[rank], joins.At(rank), over));
  }
  for (const Status& status : joins.Wait()) CHECK(status.ok());
  for (int32_t other : last) CHECK(other == last[0] && active[static_cast<size_t>(other)]);
  return statuses;
}

void CheckOk(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) CHECK(status.ok());
}

std::vector<size_t> ActiveOf(size_t ranks, unsigned mask) {
  std::vector<size_t> active;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (mask >> rank & 1) active.push_back(rank);
  }
  return active;
}

// One reduction of `count` elements of any type, whose bytes come from a generator, against Reduce() over the
// active ranks alone.
void TestReduction(Job* job, DataType dtype, ReduceOp op, AverageOver over, int64_t count, unsigned mask) {
  const auto active = ActiveOf(job->engines.size(), mask);
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  std::mt19937 random(static_cast<unsigned>(dtype) + mask);
  std::vector<std::vector<char>> in(active.size(), std::vector<char>(bytes)), out(in);
  std::vector<const void*> sources;
  std::vector<std::pair<size_t, Request>> requests;
  for (size_t i = 0; i < active.size(); ++i) {
    for (char& byte : in[i])
      byte = static_cast<char>(dtype == DataType::kBool ? random() & 1 : random() % 60);
    sources.push_back(in[i].data());
    Request request;
    request.name = "x";
    request.signature = std::string(NameOf(op)) + NameOf(dtype) + std::to_string(count);
    request.dtype = dtype;
    request.op = op;
    if (dtype == DataType::kFloat32) request.prescale = -2.0;
    request.buffers.push_back({in[i].data(), out[i].data(), count});
    requests.emplace_back(active[i], std::move(request));
  }
  std::vector<char> expected(bytes);
  const int taking_part = static_cast<int>(active.size());
  const int divisor = over == AverageOver::kActive ? taking_part : static_cast<int>(job->engines.size());
  Reduce({dtype, op, dtype == DataType::kFloat32 ? -2.0 : 1.0, 1.0, taking_part, divisor}, sources.data(),
         expected.data(), count);
  CheckOk(RunWithout(job, std::move(requests), over));
  for (const auto& result : out) CHECK(result == expected);
}

void TestReductions(int size) {
  Job job(size, 3);
  const unsigned all = (1u << size) - 1;
  unsigned mask = 0;
  for (int type = 0; type <= static_cast<int>(DataType::kComplex128); ++type) {
    for (ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (!Supports(op, static_cast<DataType>(type))) continue;
      for (AverageOver over : {AverageOver::kSize, AverageOver::kActive}) {
        mask = mask % all + 1;
        TestReduction(&job, static_cast<DataType>(type), op, over, 1 + type, mask);
      }
    }
  }
  for (mask = 1; mask <= all; ++mask) {
    TestReduction(&job, DataType::kFloat64, ReduceOp::kAverage, AverageOver::kSize, 50001, mask);
  }
  job.End();
}

// Which rank brings what as element `i` of member `member`.
float Value(size_t rank, size_t member, size_t i) {
  return static_cast<float>(1000 * rank + 100 * member + i % 97);
}

std::vector<float> Values(size_t rank, size_t member, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, member, i);
  return values;
}

void TestReducescatter(int size, unsigned mask, std::vector<int64_t> rows, int64_t row) {
  Job job(size, 3);
  const auto active = ActiveOf(job.engines.size(), mask);
  std::vector<std::vector<std::vector<float>>> in(active.size()), out(active.size());
  std::vector<std::pair<size_t, Request>> requests;
  for (size_t a = 0; a < active.size(); ++a) {
    Request request;
    request.name = "scatter";
    request.kind = Kind::kReducescatter;
    request.signature = "reducescatter";
    for (size_t i = 0; i < rows.size(); ++i) {
      in[a].push_back(Values(active[a], i, static_cast<size_t>(rows[i] * row)));
      const int rank = static_cast<int>(active[a]);
      out[a].emplace_back(
          static_cast<size_t>((RowsBegin(rows[i], rank + 1, size) - RowsBegin(rows[i], rank, size)) * row));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      request.buffers.push_back({in[a][i].data(), out[a][i].data(), rows[i] * row, rows[i], row});
    }
    requests.emplace_back(active[a], std::move(request));
  }
  CheckOk(RunWithout(&job, std::move(requests)));
  for (size_t a = 0; a < active.size(); ++a) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto first = static_cast<size_t>(RowsBegin(rows[i], static_cast<int>(active[a]), size) * row);
      for (size_t k = 0; k < out[a][i].size(); ++k) {
        float sum = 0;
        for (size_t other : active) sum += Value(other, i, first + k);
        CHECK(out[a][i][k] == sum);
      }
    }
  }
  job.End();
}

// Rank r sends r + 1 rows to rank 0, r + 2 to rank 1 and so on; in an allgather r + 1 rows to everybody.
void TestRows(int size, unsigned mask, Kind kind, size_t row) {
  Job job(size, 3);
  const auto ranks = static_cast<size_t>(size);
  const auto active = ActiveOf(ranks, mask);
  const bool split = kind == Kind::kAlltoall;
  const auto rows_to = [&](size_t from, size_t to) { return from + 1 + (split ? to : 0); };
  const auto first_to = [&](size_t from, size_t to) {
    size_t first = 0;
    for (size_t rank = 0; split && rank < to; ++rank) first += rows_to(from, rank);
    return first;
  };
  std::vector<std::vector<float>> in(ranks), out(ranks);
  std::vector<std::vector<int64_t>> came(ranks);
  std::vector<int64_t> divisors(ranks);
  std::vector<std::pair<size_t, Request>> requests;
  for (size_t rank : active) {
    const size_t total = split ? first_to(rank, ranks) : rows_to(rank, 0);
    in[rank] = Values(rank, 0, total * row);
    Request request;
    request.name = "rows";
    request.kind = kind;
    request.signature = NameOf(kind);
    request.buffers.push_back({in[rank].data(), nullptr, static_cast<int64_t>(total * row),
                               static_cast<int64_t>(total), static_cast<int64_t>(row)});
    for (size_t to = 0; split && to < ranks; ++to) {
      request.splits.push_back(static_cast<int64_t>(rows_to(rank, to)));
    }
    request.divisor = &divisors[rank];
    request.allocate = [&, rank](const std::vector<int64_t>& rows, std::vector<void*>* memory) {
      came[rank] = rows;
      int64_t sum = 0;
      for (int64_t count : rows) sum += count;
      out[rank].resize(static_cast<size_t>(sum) * row);
      memory->push_back(out[rank].data());
      return Status();
    };
    requests.emplace_back(rank, std::move(request));
  }
  CheckOk(RunWithout(&job, std::move(requests), AverageOver::kActive));
  for (size_t rank : active) {
    std::vector<int64_t> rows(ranks);
    std::vector<float> expected;
    for (size_t from : active) {
      rows[from] = static_cast<int64_t>(rows_to(from, rank));
      for (size_t i = 0; i < rows_to(from, rank) * row; ++i) {
        expected.push_back(Value(from, 0, first_to(from, rank) * row + i));
      }
    }
    CHECK(came[rank] == rows);
    CHECK(out[rank] == expected);
    CHECK(divisors[rank] == static_cast<int64_t>(active.size()));
  }
  job.End();
}

// From a rank that has not joined it works; from one that has, all others get the same error, and go on.
void TestBroadcastAndBarrier(int size, unsigned mask) {
  Job job(size, 3);
  const auto active = ActiveOf(job.engines.size(), mask);
  for (int root = 0; root < size; ++root) {
    std::vector<std::vector<float>> values(active.size());
    std::vector<std::pair<size_t, Request>> requests;
    for (size_t a = 0; a < active.size(); ++a) {
      values[a].assign(30000, static_cast<float>(active[a]));
      Request broadcast = Allreduce("b", &values[a], nullptr);
      broadcast.kind = Kind::kBroadcast;
      broadcast.root = root;
      broadcast.signature = "broadcast|root_rank " + std::to_string(root);
      Request barrier;
      barrier.name = "barrier";
      barrier.kind = Kind::kBarrier;
      barrier.signature = "barrier";
      requests.emplace_back(active[a], std::move(broadcast));
      requests.emplace_back(active[a], std::move(barrier));
    }
    const auto statuses = RunWithout(&job, std::move(requests));
    for (size_t a = 0; a < active.size(); ++a) {
      const Status& status = statuses[2 * a];
      CHECK(statuses[2 * a + 1].ok());
      CHECK(status.ok() == ((mask >> root & 1) != 0));
      CHECK(status.message() == statuses[0].message());
      if (!status.ok()) {
        CHECK(status.code() == Code::kFailedPrecondition);
        CHECK(status.message().find("root, rank " + std::to_string(root) + ", has joined") !=
              std::string::npos);
      }
      const float expected = static_cast<float>(status.ok() ? root : static_cast<int>(active[a]));
      CHECK(values[a].front() == expected && values[a].back() == expected);
    }
  }
  job.End();
}

// Each rank has its own number of steps of several names in any order, by itself, then joins; in several
// epochs.
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
    // One with fewer steps cannot be the last.
    CHECK(counts[static_cast<size_t>(last[0][epoch])] == *std::max_element(counts.begin(), counts.end()));
  }
  job.End();
}

// Buckets of a sequence: those that begin with a rank finish with it, those that come later run without it.
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
  std::vector<std::vector<float>> next(3,
                                       std::vector<float>(30000, 1.0f));  // tickets are still counted alike
  Outcomes after(3);
  for (size_t rank : {0, 1, 2}) job.engines[rank]->Submit(Allreduce("next", &next[rank], after.At(rank)));
  CheckOk(after.Wait());
  for (const auto& value : next) CHECK(value.back() == 3);
  job.End();
}

// Ranks that ask for different divisors all hear of it, and join the next time.
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

// The active ranks disagree on a name: only they are quoted, and the next collective works.
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

// What ends a job ends a join: a rank that leaves, fails, or cancels its step.
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

// A rank that has joined is no rank that is waited for, however long the others take; one that neither joins
// nor comes is.
void TestStalls() {
  Job job(3, 0, {}, {0.2, 0.6, 0});
  std::vector<int32_t> last(3);
  std::vector<float> values(2);
  Outcomes joins(2), stalled(1);
  job.engines[0]->Submit(Join(&last[0], joins.At(0)));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
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
    const unsigned all = (1u << size) - 1;
    for (unsigned mask = 1; mask <= all; mask += size > 3 ? 5 : 1) {
      TestReducescatter(size, mask, {7}, 3);
      TestReducescatter(size, mask, {2 * size, 1, 3000}, 5);
      TestRows(size, mask, Kind::kAllgather, 3);
      TestRows(size, mask, Kind::kAlltoall, 20001);
      TestBroadcastAndBarrier(size, mask);
    }
  }
  TestSequences();
  TestDispute();
  TestMismatchWithout();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (bool over_shm : {false, true}) {
    tfddl::Job::over_shm = over_shm;
    tfddl::TestAll();
    for (int size : {2, 3, 4}) tfddl::TestReductions(size);
  }
  tfddl::TestEnds();
  tfddl::TestStalls();
  std::puts("join: ok");
  return 0;
}
