// Results on GPUs whose allocation waits for memory, as TensorFlow's allocator does.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/gpu/gpu_job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

// Waits up to five seconds.
bool Wait(const std::atomic<bool>& flag) {
  for (int i = 0; i < 5000 && !flag; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return flag;
}

// An allgather of one rank, whose allocation waits for `memory`.
class WaitingGather {
 public:
  explicit WaitingGather(GpuJob* job) : in_(Values(0, 0, 4)) {
    Request request = GpuRequest("w", Kind::kAllgather, DataType::kFloat32, [this](const Status& status) {
      status_ = status;
      done_early = !allocated_;
      done = true;
    });
    request.buffers.push_back({in_.get(), nullptr, 4, 4, 1});
    request.allocate = [this, job](const std::vector<int64_t>& rows, std::vector<void*>* out) {
      begun = true;
      had_memory = Wait(memory);
      job->Use(0);
      out_ = std::make_unique<GpuTensor<float>>(std::vector<float>(static_cast<size_t>(rows[0]), -1));
      out->push_back(out_->get());
      allocated_ = true;
      return Status();
    };
    job->Submit(0, std::move(request));
    CHECK(Wait(begun));
  }

  std::vector<float> Result(const GpuJob& job) const { return out_->Read(job.streams[0]); }
  const Status& status() const { return status_; }

  std::atomic<bool> begun{false}, memory{false}, had_memory{false}, done{false}, done_early{false};

 private:
  std::atomic<bool> allocated_{false};
  Status status_;
  GpuTensor<float> in_;
  std::unique_ptr<GpuTensor<float>> out_;
};

// The end of another collective frees the memory.
void TestAnotherCollectiveFreesMemory() {
  GpuJob job(1);
  job.Use(0);
  {
    WaitingGather gather(&job);
    std::vector<float> values(10, 1.0f);
    job.job->engines[0]->Submit(Allreduce("x", &values, [&](const Status&) { gather.memory = true; }));
    CHECK(Wait(gather.done) && gather.had_memory && gather.status().ok());
    job.Use(0);
    CHECK(gather.Result(job) == Values(0, 0, 4));
  }
  job.End();
}

// The job fails during an allocation. The request is done after it, since it uses the request's context.
void TestFailureInAnAllocation() {
  GpuJob job(1);
  job.Use(0);
  WaitingGather gather(&job);
  job.job->engines[0]->Fail("it is over");
  std::vector<float> values(10, 1.0f);
  std::atomic<bool> failed{false};
  job.job->engines[0]->Submit(Allreduce("x", &values, [&](const Status&) { failed = true; }));
  CHECK(Wait(failed));
  gather.memory = true;
  CHECK(Wait(gather.done) && !gather.done_early && gather.status().message() == "it is over");
  job.job->watchdogs.clear();
  job.job->engines[0]->Stop();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestAnotherCollectiveFreesMemory();
  tfddl::TestFailureInAnAllocation();
  std::puts("nccl_allocation: ok");
  return 0;
}
