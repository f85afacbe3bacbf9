// Failures of GPUs and NCCL: every pending request raises on every rank, and nothing hangs.
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "tests/double/control.h"
#include "tests/gpu/gpu_job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

using Floats = std::unique_ptr<GpuTensor<float>>;

bool Has(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

// All ranks sum one tensor each.
std::vector<Status> Reduce(GpuJob& job, std::vector<Floats>* x, const std::string& name = "x") {
  Outcomes outcomes(job.size());
  for (size_t rank = 0; rank < job.size(); ++rank) {
    job.Use(rank);
    x->push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(10, 1)));
    Request request = GpuRequest(name, Kind::kAllreduce, DataType::kFloat32, outcomes.At(rank));
    request.buffers.push_back({x->back()->get(), x->back()->get(), 10});
    job.Submit(rank, std::move(request));
  }
  return outcomes.Wait();
}

// NCCL reports an error while the ranks wait for the result.
void TestAsynchronousError(int size) {
  tfddl_fake_reset();
  std::vector<Floats> x;
  GpuJob job(size);
  for (const Status& status : Reduce(job, &x)) CHECK(status.ok());
  tfddl_fake_set("fail_rank", size - 1);
  tfddl_fake_set("fail_at", 2);
  for (const Status& status : Reduce(job, &x)) {
    CHECK(status.code() == Code::kUnknown);
    CHECK(Has(status, "rank " + std::to_string(size - 1)) && Has(status, "NCCL's asynchronous work failed"));
  }
  for (const Status& status : Reduce(job, &x, "later")) CHECK(status.code() == Code::kUnknown);
  while (tfddl_fake_calls("ncclCommAbort") < size) std::this_thread::yield();
}

// An abort that waits, as for a peer that is stopped, holds up no request, neither an old nor a new one.
void TestAbortThatWaits() {
  tfddl_fake_reset();
  std::vector<Floats> x;
  GpuJob job(2);
  for (const Status& status : Reduce(job, &x)) CHECK(status.ok());
  tfddl_fake_set("abort_hold", 1);
  Outcomes pending(1);
  job.Use(0);
  x.push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(10, 1)));
  Request request = GpuRequest("pending", Kind::kAllreduce, DataType::kFloat32, pending.At(0));
  request.buffers.push_back({x.back()->get(), x.back()->get(), 10});
  job.Submit(0, std::move(request));
  for (auto& engine : job.job->engines) engine->Fail("a reason");
  CHECK(Has(pending.Wait()[0], "a reason"));
  for (const Status& status : Reduce(job, &x, "later")) CHECK(Has(status, "a reason"));
  tfddl_fake_set("abort_hold", 0);
}

// A call itself fails on one rank.
void TestFailingCall(int size, const char* function) {
  tfddl_fake_reset();
  std::vector<Floats> x;
  GpuJob job(size);
  tfddl_fake_fail_call(function, std::string(function).substr(0, 2) == "cu" ? 2 : 1, 1);
  for (const Status& status : Reduce(job, &x)) {
    CHECK(!status.ok());
    CHECK(Has(status, function));
  }
}

// Two ranks on one GPU.
void TestSharedGpu() {
  tfddl_fake_reset();
  std::vector<Floats> x;
  GpuJob job(3, {0, 1, 0});
  for (const Status& status : Reduce(job, &x)) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(Has(status, "ranks 0 and 2 use the same GPU") && Has(status, "set_visible_gpu"));
  }
  job.End();
}

// A process with tensors on two GPUs.
void TestTwoGpus() {
  tfddl_fake_reset();
  std::vector<Floats> x;
  GpuJob job(2);
  for (const Status& status : Reduce(job, &x)) CHECK(status.ok());
  job.gpus[1] = 5;
  for (const Status& status : Reduce(job, &x)) {
    CHECK(Has(status, "rank 1: tfddl uses one GPU a process") && Has(status, "GPU 1 and on GPU 5"));
  }
}

// A shutdown while the GPUs are busy keeps its time limit, and pending requests raise.
void TestShutdownInFlight(int size) {
  tfddl_fake_reset();
  std::vector<Floats> x;
  GpuJob job(size);
  for (const Status& status : Reduce(job, &x)) CHECK(status.ok());
  tfddl_fake_set("enqueue_hold", 1);
  std::vector<Status> statuses;
  std::thread waiting([&] { statuses = Reduce(job, &x); });
  const long before = size;
  while (tfddl_fake_calls("ncclGroupEnd") < before + size) std::this_thread::yield();
  for (auto& watchdog : job.job->watchdogs) watchdog->AnnounceShutdown(1);
  for (auto& engine : job.job->engines) CHECK(!engine->Shutdown(0.1));
  for (auto& engine : job.job->engines) engine->Fail("it took too long");
  waiting.join();
  for (const Status& status : statuses) CHECK(Has(status, "it took too long"));
  for (auto& engine : job.job->engines) engine->Stop();
  CHECK(tfddl_fake_calls("ncclCommAbort") == size);
  tfddl_fake_set("enqueue_hold", 0);
  // The next job in these processes does not wait for the collectives of this one.
  GpuJob next(size, {}, {}, job.planes);
  for (const Status& status : Reduce(next, &x)) CHECK(status.ok());
  next.job->End();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {1, 2, 3}) {
    tfddl::TestAsynchronousError(size);
    for (const char* function : {"ncclAllReduce", "ncclGroupEnd", "ncclCommInitRankConfig", "ncclGetUniqueId",
                                 "cuStreamWaitEvent", "cuStreamCreateWithPriority"}) {
      tfddl::TestFailingCall(size, function);
    }
    tfddl::TestShutdownInFlight(size);
  }
  tfddl::TestAbortThatWaits();
  tfddl::TestSharedGpu();
  tfddl::TestTwoGpus();
  tfddl_fake_reset();
  std::puts("nccl_faults: ok");
  return 0;
}
