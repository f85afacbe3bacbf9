// The handlers of XLA programs on GPUs, through the engine and the doubles of CUDA and NCCL.
#include <atomic>
#include <functional>
#include <thread>

#include "tests/gpu/xla_frame.h"

namespace tfddl {
namespace {

Call MakeCall(Kind kind, const std::string& name, int size, const std::vector<Shape>& shapes) {
  Call call;
  call.kind = kind;
  call.name = name;
  call.rank = static_cast<int>(here.rank);
  call.size = size;
  call.shapes = shapes;
  return call;
}

using Floats = GpuTensor<float>;

// A compiled program on the thread of a rank: a start and a finish, in place.
struct Program {
  Program(const std::string& name, int size, std::vector<float> values)
      : call(MakeCall(Kind::kAllreduce, name, size, {{static_cast<int64_t>(values.size())}})), x(values) {}
  std::string Start() { return Frame(call, {x.get(), nullptr}, {x.get(), nullptr}).Run(StartOnGpu); }
  std::string Finish() { return Frame(call, {x.get(), nullptr}, {x.get(), nullptr}).Run(FinishOnGpu); }
  std::vector<float> Read() const { return x.Read(here.job->streams[here.rank]); }
  Call call;
  Floats x;
};

void OnRanks(GpuJob* job, const std::function<void(int)>& body) {
  fake::OnThreads(static_cast<int>(job->size()), [&](int rank) {
    here = {job, static_cast<size_t>(rank)};
    job->Use(here.rank);
    body(rank);
  });
}

// Two buckets at once, in several runs. The stream waits for the results; the host does not wait for the last
// run.
void TestBuckets(int size) {
  GpuJob job(size);
  OnRanks(&job, [&](int rank) {
    std::vector<std::unique_ptr<Program>> programs;
    for (int bucket : {0, 1}) {
      programs.push_back(
          std::make_unique<Program>("steps", size, std::vector<float>(3, rank + bucket + 1.0f)));
      programs.back()->call.bucket = bucket;
      programs.back()->call.buckets = 2;
      programs.back()->call.context = "gradients=the plan";
    }
    float factor = 1;
    for (int run = 0; run < 3; ++run, factor *= static_cast<float>(size)) {
      for (auto& program : programs) CHECK(program->Start().empty());
      for (auto& program : programs) CHECK(program->Finish().empty());
    }
    const float ranks = static_cast<float>(size * (size + 1)) / 2;
    const float last = factor / static_cast<float>(size);
    CHECK(programs[0]->Read() == std::vector<float>(3, last * ranks));
    CHECK(programs[1]->Read() == std::vector<float>(3, last * (ranks + static_cast<float>(size))));
  });
  job.End();
}

// The input becomes ready late on the stream, and the host does not wait for it.
void TestLateProducer(int size) {
  GpuJob job(size);
  fake::Gate gate;
  std::atomic<int> finished{0};
  OnRanks(&job, [&](int rank) {
    Program program("late", size, std::vector<float>(100, -1));
    const std::vector<float> late(100, static_cast<float>(rank + 1));
    if (rank == 0) gate.Close(job.streams[0]);
    CHECK(cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(program.x.get()), late.data(), 400,
                               job.streams[here.rank]) == CUDA_SUCCESS);
    CHECK(program.Start().empty());
    CHECK(program.Finish().empty());  // would never end if it waited for the stream
    CHECK(cuStreamQuery(job.streams[here.rank]) == CUDA_ERROR_NOT_READY);
    if (++finished == size) gate.Open();
    for (float value : program.Read()) CHECK(value == static_cast<float>(size * (size + 1)) / 2);
  });
  job.End();
}

// Calls with separate inputs and outputs, and calls without data.
void TestRows(int size) {
  GpuJob job(size);
  OnRanks(&job, [&](int rank) {
    const Call gather = MakeCall(Kind::kAllgather, "rows", size, {{2}});
    Floats in({rank + 0.5f, -rank - 1.0f}), out(std::vector<float>(2 * job.size(), 0));
    CHECK(Frame(gather, {in.get(), nullptr}, {out.get(), nullptr}).Run(StartOnGpu).empty());
    CHECK(Frame(gather, {out.get(), in.get(), nullptr}, {out.get(), nullptr}).Run(FinishOnGpu).empty());
    const auto rows = out.Read(job.streams[here.rank]);
    for (int r = 0; r < size; ++r) {
      CHECK(rows[static_cast<size_t>(2 * r)] == r + 0.5f && rows[static_cast<size_t>(2 * r + 1)] == -r - 1);
    }
    const Call barrier = MakeCall(Kind::kBarrier, "barrier", size, {});
    CHECK(Frame(barrier, {nullptr}, {nullptr}).Run(StartOnGpu).empty());
    CHECK(Frame(barrier, {nullptr}, {nullptr}).Run(FinishOnGpu).empty());
    Call query = MakeCall(Kind::kBarrier, "", size, {});
    query.rank_query = "rank";
    fake::Array<int> number({0});
    auto* where = reinterpret_cast<float*>(number.get());
    CHECK(Frame(query, {nullptr}, {where, nullptr}).Run(StartOnGpu).empty());
    CHECK(number.Read(job.streams[here.rank])[0] == 7);
  });
  job.End();
}

// All ranks get an error; the other calls of the run end too, and the next run works.
void TestError(int size) {
  GpuJob job(size);
  OnRanks(&job, [&](int rank) {
    Program other("other", size, {1}),
        wrong("wrong", size, std::vector<float>(static_cast<size_t>(rank + 1)));
    CHECK(other.Start().empty());
    CHECK(wrong.Start().empty());
    const std::string error = wrong.Finish();
    CHECK(fake::Has(error, "'wrong' with different arguments: rank 0"));
    CHECK(fake::Has(other.Finish(), "has not started"));
    other.Read();  // it has ended
    Program next("next", size, {2});
    CHECK(next.Start().empty() && next.Finish().empty());
    CHECK(next.Read()[0] == 2 * static_cast<float>(size));
  });
  job.End();
}

// The job fails while the GPU works: the stream of the program waits for the end of the work, as XLA reuses
// the memory then.
void TestAFailureOfLaunchedWork() {
  GpuJob job(1);
  fake::Gate gate;
  OnRanks(&job, [&](int) {
    Program program("launched", 1, {1});
    const long recorded = tfddl_fake_calls("cuEventRecord");
    gate.Close(job.streams[0]);
    CHECK(program.Start().empty());
    while (tfddl_fake_calls("cuEventRecord") < recorded + 2) std::this_thread::yield();  // input and end
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the engine tells the program of the launch
    MyEngine()->Fail("it took too long");
    while (MyEngine()->recorder().Last()->type != std::string("error")) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the program hears of it, on another thread
    const long held = tfddl_fake_calls("cuStreamWaitEvent");
    const std::string error = program.Finish();
    CHECK(error.empty() || fake::Has(error, "it took too long"));
    CHECK(tfddl_fake_calls("cuStreamWaitEvent") == held + 1);
    gate.Open();
    program.Read();  // the stream has passed the gate
  });
  job.End();
}

// A program that fails on another thread of one rank leaves this one alone.
void TestTwoPrograms(int size) {
  GpuJob job(size);
  OnRanks(&job, [&](int rank) {
    Program good("good", size, {1});
    CHECK(good.Start().empty());
    if (rank == 0) {
      std::thread([frame = here, size] {
        here = frame;
        here.job->Use(here.rank);
        Call call = MakeCall(Kind::kBroadcast, "bad", size, {{1}});
        call.root = size;
        Floats x({1});
        CHECK(fake::Has(Frame(call, {x.get(), nullptr}, {x.get(), nullptr}).Run(StartOnGpu), "root_rank"));
      }).join();
    }
    CHECK(good.Finish().empty());
    CHECK(good.Read()[0] == static_cast<float>(size));
  });
  job.End();
}

// XLA must not move the results between start and finish.
void TestMoved() {
  GpuJob job(1);
  OnRanks(&job, [&](int) {
    Program program("moved", 1, {1});
    Floats elsewhere({0});
    CHECK(
        fake::Has(Frame(program.call, {program.x.get(), nullptr}, {elsewhere.get(), nullptr}).Run(StartOnGpu),
                  "different memory"));
    CHECK(program.Start().empty());
    CHECK(fake::Has(
        Frame(program.call, {elsewhere.get(), nullptr}, {elsewhere.get(), nullptr}).Run(FinishOnGpu),
        "XLA has moved result 0"));
    program.Read();
  });
  job.End();
}

// The watchdog names the missing rank, and the program ends.
void TestAPeerThatNeverComes(int size) {
  WatchdogOptions watch;
  watch.warning_s = 0.1;
  watch.limit_s = 0.5;
  GpuJob job(size, {}, {}, {}, watch);
  std::atomic<int> raised{0};
  OnRanks(&job, [&](int rank) {
    if (rank == size - 1) {
      while (raised < size - 1) std::this_thread::yield();
      return;
    }
    Program program("lonely", size, {1});
    CHECK(program.Start().empty());
    const std::string error = program.Finish();
    CHECK(fake::Has(error, "lonely") && fake::Has(error, "rank " + std::to_string(size - 1)));
    ++raised;
  });
  job.job->watchdogs.clear();
  job.job->engines.clear();
}

void TestAll() {
  for (int size : {1, 2, 3}) {
    tfddl_fake_reset();
    TestBuckets(size);
    TestLateProducer(size);
    TestRows(size);
  }
  for (const char* late : {"stream_delay_us", "enqueue_delay_us"}) {
    tfddl_fake_set(late, 300);
    TestBuckets(2);
    tfddl_fake_set(late, 0);
  }
  for (int size : {2, 3}) TestError(size);
  TestTwoPrograms(2);
  TestMoved();
  TestAFailureOfLaunchedWork();
  for (int size : {2, 3}) TestAPeerThatNeverComes(size);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestAll();
  std::puts("programs of XLA on GPUs: ok");
  return 0;
}
