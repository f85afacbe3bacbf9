// Order on GPUs: collectives start after the caller's stream, in one order on all ranks, and end when the GPU
// ends.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "tests/double/control.h"
#include "tests/gpu/gpu_job.h"

namespace tfddl {
namespace {

using Floats = std::unique_ptr<GpuTensor<float>>;

// Waits long enough for a wrong event to happen.
void Linger() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

// Blocks streams until it is opened.
class Gate {
 public:
  void Bar(CUstream stream) {
    CHECK(
        cuLaunchHostFunc(stream, [](void* gate) { static_cast<Gate*>(gate)->Pass(); }, this) == CUDA_SUCCESS);
  }
  void Open() { open_ = true; }

 private:
  void Pass() {
    while (!open_) std::this_thread::yield();
  }
  std::atomic<bool> open_{false};
};

Request Sum(const std::string& name, float* x, int64_t count, std::function<void(const Status&)> done) {
  Request request = GpuRequest(name, Kind::kAllreduce, DataType::kFloat32, std::move(done));
  request.buffers.push_back({x, x, count});
  return request;
}

// The inputs become ready late on the callers' streams, rank by rank.
void TestLateProducer(int size) {
  GpuJob job(size);
  std::vector<Floats> x;
  std::vector<std::vector<float>> late;
  Gate gate;
  Outcomes outcomes(job.size());
  std::atomic<int> done{0};
  for (size_t rank = 0; rank < job.size(); ++rank) {
    job.Use(rank);
    x.push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(100, -1)));
    late.emplace_back(100, static_cast<float>(rank + 1));
    if (rank == 0) gate.Bar(job.streams[rank]);
    CHECK(cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(x[rank]->get()), late[rank].data(), 400,
                               job.streams[rank]) == CUDA_SUCCESS);
    job.Submit(rank, Sum("x", x[rank]->get(), 100, [&, set = outcomes.At(rank)](const Status& status) {
                 ++done;
                 set(status);
               }));
  }
  while (tfddl_fake_calls("ncclGroupEnd") < size) std::this_thread::yield();
  Linger();
  CHECK(done == 0);
  gate.Open();
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < job.size(); ++rank) {
    job.Use(rank);
    for (float value : x[rank]->Read(job.streams[rank]))
      CHECK(value == static_cast<float>(size * (size + 1) / 2));
  }
  job.End();
}

// Earlier work on the caller's stream still uses the memory that is allocated for a result.
void TestAllocatedLate(int size) {
  GpuJob job(size);
  std::vector<Floats> in;
  std::vector<Floats> out(job.size());
  const std::vector<float> old(job.size(), -1);
  std::vector<std::unique_ptr<Gate>> gates;
  Outcomes outcomes(job.size());
  for (size_t rank = 0; rank < job.size(); ++rank) {
    job.Use(rank);
    gates.push_back(std::make_unique<Gate>());
    in.push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(1, static_cast<float>(rank + 1))));
    Request request = GpuRequest("g", Kind::kAllgather, DataType::kFloat32, outcomes.At(rank));
    request.buffers.push_back({in[rank]->get(), nullptr, 1, 1, 1});
    request.allocate = [&, rank](const std::vector<int64_t>&, std::vector<void*>* memory) {
      job.Use(rank);
      out[rank] = std::make_unique<GpuTensor<float>>(old);
      gates[rank]->Bar(job.streams[rank]);
      CHECK(cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(out[rank]->get()), old.data(),
                                 old.size() * sizeof(float), job.streams[rank]) == CUDA_SUCCESS);
      memory->push_back(out[rank]->get());
      return Status();
    };
    job.Submit(rank, std::move(request));
  }
  while (tfddl_fake_calls("ncclGroupEnd") < size) std::this_thread::yield();
  Linger();
  for (auto& gate : gates) gate->Open();
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < job.size(); ++rank) {
    job.Use(rank);
    const auto values = out[rank]->Read(job.streams[rank]);
    for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == static_cast<float>(i + 1));
  }
  job.End();
}

// While NCCL has returned but not yet enqueued its work, no collective ends and no other one starts.
void TestLateEnqueue(int size) {
  GpuJob job(size);
  tfddl_fake_set("enqueue_hold", 1);
  std::vector<Floats> x;
  Outcomes outcomes(2 * job.size());
  std::atomic<int> done{0};
  for (size_t rank = 0; rank < job.size(); ++rank) {
    job.Use(rank);
    for (const char* name : {"x", "y"}) {
      const size_t index = x.size();
      x.push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(10, static_cast<float>(rank + 1))));
      job.Submit(rank, Sum(name, x.back()->get(), 10, [&, set = outcomes.At(index)](const Status& status) {
                   ++done;
                   set(status);
                 }));
    }
  }
  while (tfddl_fake_calls("ncclGroupEnd") < size) std::this_thread::yield();
  Linger();
  CHECK(done == 0 && tfddl_fake_calls("ncclGroupEnd") == size);
  tfddl_fake_set("enqueue_hold", 0);
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t i = 0; i < x.size(); ++i) {
    job.Use(i / 2);
    for (float value : x[i]->Read(job.streams[i / 2]))
      CHECK(value == static_cast<float>(size * (size + 1) / 2));
  }
  job.End();
}

// Each rank submits in a different order; all collectives start and end in one order.
void TestAnyOrder(int size) {
  constexpr size_t kNames = 12;
  GpuJob job(size);
  std::vector<Floats> x(kNames * job.size());
  std::vector<std::vector<size_t>> ended(job.size());
  Outcomes outcomes(x.size());
  for (size_t rank = 0; rank < job.size(); ++rank) {
    job.Use(rank);
    for (size_t i = 0; i < kNames; ++i) {
      const size_t name = (5 * i + 7 * rank) % kNames;
      const size_t index = rank * kNames + name;
      x[index] = std::make_unique<GpuTensor<float>>(
          std::vector<float>(100 * name + 1, static_cast<float>((rank + 1) * (name + 1))));
      const auto count = static_cast<int64_t>(100 * name + 1);
      job.Submit(rank, Sum("n" + std::to_string(name), x[index]->get(), count,
                           [&, rank, name, set = outcomes.At(index)](const Status& status) {
                             ended[rank].push_back(name);  // one thread a rank
                             set(status);
                           }));
    }
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < job.size(); ++rank) {
    CHECK(ended[rank] == ended[0]);
    job.Use(rank);
    for (size_t name = 0; name < kNames; ++name) {
      const auto expected = static_cast<float>(size * (size + 1)) / 2 * static_cast<float>(name + 1);
      for (float value : x[rank * kNames + name]->Read(job.streams[rank])) CHECK(value == expected);
    }
  }
  job.End();
}

// If one rank's tensor is on the CPU, all ranks get an error; the same for a bucket.
void TestOtherDevice(bool bucket) {
  GpuJob job(2);
  Outcomes outcomes(2);
  std::vector<float> host(4, 1);
  job.Use(0);
  const GpuTensor<float> x(host);
  Request on_gpu = Sum("x", x.get(), 4, outcomes.At(0));
  Request on_cpu = Sum("x", host.data(), 4, outcomes.At(1));
  if (bucket) {
    on_gpu.buckets = on_cpu.buckets = 2;
    AgreeAlone(&on_gpu);
  }
  job.Submit(0, std::move(on_gpu));
  job.job->engines[1]->Submit(std::move(on_cpu));
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.code() == Code::kFailedPrecondition);
    CHECK(status.message().find("rank 0: on a GPU; rank 1: on the CPU") != std::string::npos);
  }
  job.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {1, 2, 3}) {
    for (auto test :
         {tfddl::TestLateProducer, tfddl::TestAllocatedLate, tfddl::TestLateEnqueue, tfddl::TestAnyOrder}) {
      tfddl_fake_reset();
      test(size);
    }
  }
  for (bool bucket : {false, true}) tfddl::TestOtherDevice(bucket);
  std::puts("nccl_order: ok");
  return 0;
}
