// Threads that submit small requests on GPUs run the engine's rounds themselves.
#include <algorithm>
#include <atomic>
#include <functional>

#include "tests/double/control.h"
#include "tests/engine/poll_job.h"
#include "tests/gpu/gpu_job.h"

namespace tfddl {
namespace {

constexpr int kCount = 200;

// Each rank submits allreduces, one after the other, and checks their sums. `made` gets each request.
template <typename Made>
void Reduce(GpuJob* job, const Made& made) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < job->size(); ++rank) {
    threads.emplace_back([job, rank, &made] {
      job->Use(rank);
      for (int i = 0; i < kCount; ++i) {
        const GpuTensor<float> x(Bring<float>(rank, 5));
        std::promise<Status> ended;
        Request request = GpuRequest("x", Kind::kAllreduce, DataType::kFloat32, nullptr);
        request.op = ReduceOp::kSum;
        request.buffers = {{x.get(), x.get(), 5}};
        request.done = [&ended](const Status& status) { ended.set_value(status); };
        made(&request);
        job->Submit(rank, std::move(request));
        CHECK(ended.get_future().get().ok());
        const auto sums = x.Read(job->streams[rank]);
        for (size_t e = 0; e < sums.size(); ++e) {
          double sum = 0;
          for (size_t other = 0; other < job->size(); ++other) sum += Brought(other, e);
          CHECK(sums[e] == sum);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// The requests that end on the threads that submit them.
int EndedHere(int size, EngineOptions options) {
  GpuJob job(size, {}, std::move(options));
  std::atomic<int> here{0};
  Reduce(&job, [&here](Request* request) {
    request->done = [&here, submitter = std::this_thread::get_id(),
                     done = std::move(request->done)](const Status& status) {
      here += std::this_thread::get_id() == submitter;
      done(status);
    };
  });
  job.End();
  return here;
}

// Whether polling reaches a number in one of several jobs: on a busy machine other threads are often late.
bool Reaches(int number, const std::function<int()>& job) {
  int most = 0;
  for (int jobs = 0; most < number && jobs < 50; ++jobs) most = std::max(most, job());
  return most >= number;
}

void TestEnd() {
  CHECK(EndedHere(1, {}) == 0);
  CHECK(Reaches(20, [] { return EndedHere(1, Polling()); }));
  EndedHere(2, Polling());
}

// The requests of compiled programs that are launched on the threads that submit them. The work ends long
// after, on another thread, so that polls for its end would be in vain and become rare.
int LaunchedHere(int size) {
  tfddl_fake_set("stream_delay_us", 500);
  GpuJob job(size, {}, Polling());
  std::atomic<int> here{0};
  Reduce(&job, [&here](Request* request) {
    const auto submitter = std::this_thread::get_id();
    request->launched = [&here, submitter](const std::shared_ptr<DeviceEvent>&) {
      here += std::this_thread::get_id() == submitter;
    };
    request->done = [submitter, done = std::move(request->done)](const Status& status) {
      CHECK(std::this_thread::get_id() != submitter);
      done(status);
    };
  });
  job.End();
  tfddl_fake_reset();
  return here;
}

void TestLaunch() {
  CHECK(Reaches(30, [] { return LaunchedHere(1); }));
  LaunchedHere(2);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestEnd();
  tfddl::TestLaunch();
}
