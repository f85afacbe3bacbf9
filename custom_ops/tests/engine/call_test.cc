// Calls of compiled programs: encoding, every collective, errors.
#include "core/compiled/call.h"

#include <functional>
#include <thread>

#include "core/compiled/run_call.h"
#include "tests/engine/job.h"

namespace tfddl {
namespace {

using Tensors = std::vector<std::vector<float>>;

// Runs `rank(r)` for each rank, on a thread of its own.
void OnRanks(int size, const std::function<void(int)>& rank) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back([&rank, r] { rank(r); });
  for (auto& thread : threads) thread.join();
}

Call MakeCall(Kind kind, int rank, int size, std::vector<std::vector<int64_t>> shapes) {
  Call call;
  call.kind = kind;
  call.name = NameOf(kind);
  call.rank = rank;
  call.size = size;
  call.shapes = std::move(shapes);
  return call;
}

Status Run(const std::shared_ptr<Engine>& engine, const Call& call, const Tensors& in, Tensors* out) {
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const auto& tensor : in) from.push_back(tensor.data());
  for (auto& tensor : *out) to.push_back(tensor.data());
  return RunCall(engine, Call::Decode(call.Encode()), from.data(), to.data());
}

void TestText() {
  Call call = MakeCall(Kind::kReducescatter, 1, 3, {{2, 3}, {}, {0}});
  call.rank_query = "rank";
  call.process_set = 3;
  call.name = std::string("a \"name\"\n\0", 10);
  call.dtype = DataType::kBFloat16;
  call.op = ReduceOp::kMax;
  call.prescale = "0.5";
  call.postscale = "2.0";
  call.context = "group=members [0]";
  call.bucket = 2;
  call.buckets = 5;
  call.root = 4;
  call.splits = "int64";
  const Call read = Call::Decode(call.Encode());
  CHECK(read.Encode() == call.Encode());
  CHECK(read.name == call.name && read.shapes == call.shapes && read.op == call.op && read.size == 3 &&
        read.process_set == 3);
  CHECK(read.dtype == call.dtype && read.context == call.context && read.splits == call.splits);
  CHECK(call.Encode().find_first_not_of("0123456789abcdef") == std::string::npos);
  bool raised = false;
  try {
    Call::Decode(call.Encode().substr(8));
  } catch (const std::exception&) {
    raised = true;
  }
  CHECK(raised);
}

void TestReductions(int size) {
  Job job(size, 2);
  OnRanks(size, [&](int rank) {
    const auto& engine = job.engines[static_cast<size_t>(rank)];
    const auto value = static_cast<float>(rank + 1);
    const float sum = static_cast<float>(size * (size + 1)) / 2;
    // The tensors of a group are reduced separately.
    Call call = MakeCall(Kind::kAllreduce, rank, size, {{3}, {}, {0}, {2, 2}});
    const Tensors in = {{value, 0, 1}, {2 * value}, {}, {1, value, 1, value}};
    Tensors out = {std::vector<float>(3), {0}, {}, std::vector<float>(4)};
    CHECK(Run(engine, call, in, &out).ok());
    const auto n = static_cast<float>(size);
    CHECK((out == Tensors{{sum, 0, n}, {2 * sum}, {}, {n, sum, n, sum}}));
    // Five rows are divided among the ranks; the first ranks get one more.
    call = MakeCall(Kind::kReducescatter, rank, size, {{5, 2}});
    call.postscale = "2.0";
    const int64_t first = RowsBegin(5, rank, size), rows = RowsOf(5, rank, size);
    out = {std::vector<float>(static_cast<size_t>(2 * rows))};
    CHECK(Run(engine, call, {{0, 0, 1, 1, 2, 2, 3, 3, 4, 4}}, &out).ok());
    for (size_t i = 0; i < out[0].size(); ++i) {
      CHECK(out[0][i] == 2 * n * static_cast<float>(first + static_cast<int64_t>(i / 2)));
    }
  });
  job.End();
}

void TestRows(int size) {
  Job job(size, 2);
  OnRanks(size, [&](int rank) {
    const auto& engine = job.engines[static_cast<size_t>(rank)];
    const auto value = static_cast<float>(rank + 1);
    const auto ranks = static_cast<size_t>(size);
    Call call = MakeCall(Kind::kBroadcast, rank, size, {{2}});
    call.root = size - 1;
    Tensors out = {{0, 0}};
    CHECK(Run(engine, call, {{value, -value}}, &out).ok());
    CHECK(out[0][0] == static_cast<float>(size) && out[0][1] == -static_cast<float>(size));
    call = MakeCall(Kind::kAllgather, rank, size, {{1}, {2, 1}});
    out = {std::vector<float>(ranks), std::vector<float>(2 * ranks)};
    CHECK(Run(engine, call, {{value}, {value, 10 * value}}, &out).ok());
    for (size_t r = 0; r < ranks; ++r) {
      CHECK(out[0][r] == static_cast<float>(r + 1) && out[1][2 * r + 1] == 10 * static_cast<float>(r + 1));
    }
    call = MakeCall(Kind::kAlltoall, rank, size, {{size}});
    call.splits = "None";
    std::vector<float> sent;
    for (size_t r = 0; r < ranks; ++r) sent.push_back(100 * value + static_cast<float>(r));
    out = {std::vector<float>(ranks)};
    CHECK(Run(engine, call, {sent}, &out).ok());
    for (size_t r = 0; r < ranks; ++r) CHECK(out[0][r] == static_cast<float>(100 * (r + 1)) + value - 1);
    out = {};
    CHECK(Run(engine, MakeCall(Kind::kBarrier, rank, size, {}), {}, &out).ok());
  });
  job.End();
}

// A compiled call has the same signature as a plain kernel.
void TestWithOneThatIsNotCompiled() {
  Job job(2);
  Outcomes outcomes(1);
  std::vector<float> values = {1, 2};
  Request request = Allreduce("x", &values, outcomes.At(0));
  request.signature =
      "collective=allreduce|op=Sum|prescale_factor=1.0|postscale_factor=1.0|tensor=float32 [2]";
  job.engines[0]->Submit(std::move(request));
  Call call = MakeCall(Kind::kAllreduce, 1, 2, {{2}});
  call.name = "x";
  Tensors out = {{0, 0}};
  CHECK(Run(job.engines[1], call, {{10, 20}}, &out).ok());
  CHECK(out[0][1] == 22 && outcomes.Wait()[0].ok() && values[0] == 11);
  job.End();
}

void TestErrors(int size) {
  Job job(size);
  OnRanks(size, [&](int rank) {
    const auto& engine = job.engines[static_cast<size_t>(rank)];
    Tensors out = {std::vector<float>(static_cast<size_t>(3 * size))};
    // More rows on the last rank than on the others.
    const int64_t rows = rank == size - 1 ? 3 : 2;
    Call call = MakeCall(Kind::kAllgather, rank, size, {{rows}});
    Status status = Run(engine, call, {{1, 2, 3}}, &out);
    CHECK(!status.ok());
    // The error shows the rows by rank.
    CHECK(status.message().find("equally many rows") != std::string::npos);
    // Different shapes.
    call = MakeCall(Kind::kAllreduce, rank, size, {{rows}});
    status = Run(engine, call, {{1, 2, 3}}, &out);
    CHECK(status.code() == Code::kFailedPrecondition);
    // Compiled for another job.
    call = MakeCall(Kind::kAllgather, rank, size + 1, {{1}});
    CHECK(Run(engine, call, {{1}}, &out).code() == Code::kFailedPrecondition);
    call = MakeCall(Kind::kBroadcast, rank, size, {{1}});
    call.root = size;
    CHECK(Run(engine, call, {{1}}, &out).code() == Code::kInvalidArgument);
    // The job goes on.
    call = MakeCall(Kind::kAllreduce, rank, size, {{1}});
    CHECK(Run(engine, call, {{1}}, &out).ok() && out[0][0] == static_cast<float>(size));
  });
  job.End();
}

// A call that waits when the job fails returns the reason.
void TestFailure() {
  Job job(2);
  Tensors out = {{0}};
  Status status;
  std::thread program(
      [&] { status = Run(job.engines[0], MakeCall(Kind::kAllreduce, 0, 2, {{1}}), {{1}}, &out); });
  while (job.engines[0]->Waiting().empty()) std::this_thread::yield();
  job.engines[0]->Fail("the reason");
  program.join();
  CHECK(status.code() == Code::kUnknown && status.message() == "the reason");
}

Call Bucket(int bucket, int size, int rank, int64_t count) {
  Call call = MakeCall(Kind::kAllreduce, rank, size, {{count}});
  call.name = "steps";
  call.context = "gradients=the plan";
  call.bucket = bucket;
  call.buckets = 2;
  return call;
}

// Two calls are in flight at once, and end in the order that the program chooses.
void TestStarted(int size) {
  Job job(size, 2);
  OnRanks(size, [&](int rank) {
    const auto& engine = job.engines[static_cast<size_t>(rank)];
    for (int64_t step : {1, 2}) {
      const CallContext context{step, -1, nullptr};
      std::vector<float> first = {1, 2}, second = {3};
      const void* in = first.data();
      CHECK(StartCall(engine, Bucket(0, size, rank, 2), &in, nullptr, context).ok());
      first = {-1, -1};  // was copied
      in = second.data();
      CHECK(StartCall(engine, Bucket(1, size, rank, 1), &in, nullptr, context).ok());
      void* out = second.data();
      CHECK(FinishCall(engine, Bucket(1, size, rank, 1), &out, context).ok());
      out = first.data();
      CHECK(FinishCall(engine, Bucket(0, size, rank, 2), &out, context).ok());
      const auto n = static_cast<float>(size);
      CHECK((first == std::vector<float>{n, 2 * n}) && second[0] == 3 * n);
      CHECK(!FinishCall(engine, Bucket(0, size, rank, 2), &out, context).ok());  // only once
    }
  });
  job.End();
}

// An error of one call ends all calls of the run. The next run works.
void TestErrorBetween(int size) {
  Job job(size);
  OnRanks(size, [&](int rank) {
    const auto& engine = job.engines[static_cast<size_t>(rank)];
    const CallContext context{10 + rank, -1, nullptr};
    float value = 1;
    const void* in = &value;
    void* out = &value;
    Call wrong = Bucket(0, size, rank, 1);
    wrong.context = "gradients=the plan of rank " + std::to_string(rank);
    CHECK(StartCall(engine, wrong, &in, nullptr, context).ok());
    Status status = FinishCall(engine, wrong, &out, context);
    CHECK(status.code() == Code::kFailedPrecondition);
    // Later calls of the same run are refused at once.
    CHECK(StartCall(engine, Bucket(1, size, rank, 1), &in, nullptr, context).ok());
    status = FinishCall(engine, Bucket(1, size, rank, 1), &out, context);
    CHECK(status.code() == Code::kCancelled);
    const CallContext next{20 + rank, -1, nullptr};
    for (int bucket : {0, 1})
      CHECK(StartCall(engine, Bucket(bucket, size, rank, 1), &in, nullptr, next).ok());
    for (int bucket : {0, 1}) CHECK(FinishCall(engine, Bucket(bucket, size, rank, 1), &out, next).ok());
    CHECK(value == static_cast<float>(size) && !engine->failure());
  });
  job.End();
}

// It ends those of other process sets too.
void TestErrorInAnotherSet() {
  Job job(2), set(2);
  OnRanks(2, [&](int rank) {
    const auto& engine = job.engines[static_cast<size_t>(rank)];
    const auto& other = set.engines[static_cast<size_t>(rank)];
    const CallContext context{30 + rank, -1, nullptr};
    float value = 1;
    const void* in = &value;
    void* out = &value;
    Call waits = MakeCall(Kind::kAllreduce, rank, 2, {{1}});
    waits.name = "waits";
    if (rank == 0) CHECK(StartCall(engine, waits, &in, nullptr, context).ok());
    Call wrong = Bucket(0, 2, rank, 1);
    wrong.context = "gradients=the plan of rank " + std::to_string(rank);
    CHECK(StartCall(other, wrong, &in, nullptr, context).ok());
    CHECK(FinishCall(other, wrong, &out, context).code() == Code::kFailedPrecondition);
    CHECK(!FinishCall(engine, waits, &out, context).ok());  // it has been taken, and ends
    while (!engine->Waiting().empty()) std::this_thread::yield();
  });
  job.End();
  set.End();
}

// A program that ends early, by an error elsewhere, leaves a started call behind: the call ends by itself,
// and the next run drops it.
void TestLeftBehind() {
  Job job(2);
  std::weak_ptr<Engine> gone = job.engines[0];
  OnRanks(2, [&](int rank) {
    const auto& engine = job.engines[static_cast<size_t>(rank)];
    std::vector<float> values = {1};
    const void* in = values.data();
    void* out = values.data();
    Call call = MakeCall(Kind::kAllreduce, rank, 2, {{1}});
    CHECK(StartCall(engine, call, &in, nullptr, {1, -1, nullptr}).ok());
    while (engine->recorder().Last()->type != std::string("done")) std::this_thread::yield();
    // The event is recorded just before the end.
    while (!engine->Waiting().empty()) std::this_thread::yield();
    CHECK(StartCall(engine, call, &in, nullptr, {2, -1, nullptr}).ok());
    CHECK(FinishCall(engine, call, &out, {2, -1, nullptr}).ok() && values[0] == 2);
    // A call that is never finished.
    CHECK(StartCall(engine, call, &in, nullptr, {3, -1, nullptr}).ok());
  });
  job.End();
  CHECK(gone.expired());
}

void TestAll() {
  TestText();
  for (int size : {1, 2, 3}) {
    TestReductions(size);
    TestRows(size);
  }
  for (int size : {1, 2, 3}) TestStarted(size);
  for (int size : {2, 3}) TestErrorBetween(size);
  TestLeftBehind();
  TestErrorInAnotherSet();
  TestErrors(2);
  TestErrors(3);
  TestWithOneThatIsNotCompiled();
  TestFailure();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestAll();
  std::puts("calls: ok");
  return 0;
}
