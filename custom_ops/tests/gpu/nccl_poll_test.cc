// Threads that submit small requests on GPUs run the engine's rounds themselves.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  CHECK(Reaches(5, [] { return EndedHere(1, Polling()); }));
  EndedHere(2, Polling());
}

// The requests of compiled programs that are launched on the threads that submit them and end on another one:
// the work takes longer than a launch, so that polls for its end would be in vain and become rare. A
// submitter that the system holds up after a launch may see the end, too.
int LaunchedHere(int size) {
  tfddl_fake_set("stream_delay_us", 500);
  GpuJob job(size, {}, Polling());
  std::atomic<int> here{0};
  Reduce(&job, [&here](Request* request) {
    const auto submitter = std::this_thread::get_id();
    const auto launcher = std::make_shared<std::thread::id>();
    request->launched = [launcher](const std::shared_ptr<DeviceEvent>&) {
      *launcher = std::this_thread::get_id();
    };
    request->done = [&here, submitter, launcher, done = std::move(request->done)](const Status& status) {
      here += *launcher == submitter && std::this_thread::get_id() != submitter;
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

// A request that a program has launched and does not wait for.
struct Launch {
  std::promise<std::shared_ptr<DeviceEvent>> launched;
  std::promise<Status> ended;
  std::thread::id launcher, ender;
};

std::unique_ptr<Launch> LaunchOne(GpuJob* job, const std::string& name, const GpuTensor<float>& tensor) {
  auto launch = std::make_unique<Launch>();
  Request request = GpuRequest(name, Kind::kAllreduce, DataType::kFloat32, nullptr);
  request.op = ReduceOp::kSum;
  request.buffers = {{tensor.get(), tensor.get(), 5}};
  request.launched = [launch = launch.get()](std::shared_ptr<DeviceEvent> end) {
    launch->launcher = std::this_thread::get_id();
    launch->launched.set_value(std::move(end));
  };
  request.done = [launch = launch.get()](const Status& status) {
    launch->ender = std::this_thread::get_id();
    launch->ended.set_value(status);
  };
  job->Submit(0, std::move(request));
  return launch;
}

// Work that still runs on the GPU does not keep the next request from its launch. The pauses give the
// engine's thread time to end the round for which a launch wakes it.
void TestLaunchBehindLaunchedWork() {
  const auto job = [] {
    GpuJob job(1, {}, Polling());
    job.Use(0);
    const GpuTensor<float> x(Bring<float>(0, 5));
    const auto first = LaunchOne(&job, "first", x);  // makes the communicator
    CHECK(first->ended.get_future().get().ok());
    tfddl_fake_set("stream_delay_us", 20000);
    std::vector<std::unique_ptr<Launch>> launches;
    for (int i = 0; i < 8; ++i) {
      launches.push_back(LaunchOne(&job, "x" + std::to_string(i), x));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::vector<std::future<Status>> ends;
    for (auto& launch : launches) ends.push_back(launch->ended.get_future());
    const bool all_run = ends[0].wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
    for (auto& end : ends) CHECK(end.get().ok());
    const auto here = [](const auto& launch) { return launch->launcher == std::this_thread::get_id(); };
    const auto behind = std::count_if(launches.begin() + 1, launches.end(), here);
    job.End();
    tfddl_fake_reset();
    return all_run ? static_cast<int>(behind) : 0;
  };
  CHECK(Reaches(1, job));
}

// A thread that waits for the end of launched work brings it about itself, without another thread.
void TestHelp() {
  const auto job = [] {
    GpuJob job(1, {}, Polling());
    job.Use(0);
    int here = 0;
    for (int i = 0; i < 50; ++i) {
      const GpuTensor<float> x(Bring<float>(0, 5));
      const auto launch = LaunchOne(&job, "x", x);
      launch->launched.get_future().get()->HoldBack(job.streams[0]);
      x.Read(job.streams[0]);
      auto end = launch->ended.get_future();
      job.job->engines[0]->Help(
          [&end] { return end.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
      CHECK(end.get().ok());
      here += launch->ender == std::this_thread::get_id();
    }
    job.End();
    return here;
  };
  CHECK(Reaches(10, job));
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestEnd();
  tfddl::TestLaunch();
  tfddl::TestLaunchBehindLaunchedWork();
  tfddl::TestHelp();
}
