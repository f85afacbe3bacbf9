// A job inside one process, for tests: N engines over the in-memory or the shared-memory transport.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/signature.h"
#include "core/engine/engine.h"
#include "core/watchdog/watchdog.h"
#include "tests/check.h"
#include "tests/transport/shm_world.h"
#include "transport/memory.h"

namespace tfddl {

// Collects the outcomes of requests and waits for them.
class Outcomes {
 public:
  explicit Outcomes(size_t count) : statuses_(count), waiting_(count) {}
  std::function<void(const Status&)> At(size_t index) {
    return [this, index](const Status& status) {
      std::lock_guard<std::mutex> lock(mutex_);
      statuses_[index] = status;
      if (--waiting_ == 0) done_.notify_all();
    };
  }
  const std::vector<Status>& Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return waiting_ == 0; });
    return statuses_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<Status> statuses_;
  size_t waiting_;
};

struct Job {
  // The transport of the engines. The watchdogs always use the in-memory transport.
  static inline bool over_shm = false;
  static inline ShmGeometry geometry = SmallGeometry();
  static inline size_t arena_bytes = 0;  // of each engine over shared memory
  // By rank, the engines' device planes; empty: none.
  static inline std::vector<std::shared_ptr<DevicePlane>> device_planes = {};
  static inline std::vector<std::shared_ptr<Timeline>> timelines = {};  // by rank; empty: none

  // `max_delay` is for the in-memory transport.
  explicit Job(int size, int max_delay = 0, EngineOptions options = {}, WatchdogOptions watch = {})
      : data(size, max_delay), shm(over_shm ? size : 0, geometry, arena_bytes), control(size) {
    for (int rank = 0; rank < size; ++rank) {
      if (!device_planes.empty()) options.device_plane = device_planes[static_cast<size_t>(rank)];
      if (!timelines.empty()) options.timeline = timelines[static_cast<size_t>(rank)];
      engines.push_back(std::make_shared<Engine>(over_shm ? shm.Join(rank) : data.Join(rank), options));
      watchdogs.push_back(std::make_unique<Watchdog>(control.Join(rank), engines.back(), watch));
    }
  }

  // All ranks leave at the same time, as at the end of a program.
  void End() {
    OnEachRank([this](size_t rank) {
      watchdogs[rank]->AnnounceShutdown(60);
      CHECK(engines[rank]->Shutdown(60));
    });
    watchdogs.clear();
    OnEachRank([this](size_t rank) { engines[rank]->Stop(); });
    engines.clear();
  }

  void OnEachRank(const std::function<void(size_t)>& body) const {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < engines.size(); ++rank) threads.emplace_back(body, rank);
    for (auto& thread : threads) thread.join();
  }

  MemoryWorld data;
  ShmWorld shm;
  MemoryWorld control;
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
};

// Runs a test over the in-memory transport, then over shared memory.
template <typename Test>
void OverBothTransports(Test test) {
  for (bool over_shm : {false, true}) {
    Job::over_shm = over_shm;
    test();
  }
  Job::over_shm = false;
}

// Element `i` of tensor number `member` of a group, on `rank`.
inline float Value(size_t rank, size_t member, size_t i) {
  return static_cast<float>(1000 * rank + 100 * member + i % 97);
}

inline std::vector<float> Values(size_t rank, size_t member, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, member, i);
  return values;
}

inline Request Allreduce(const std::string& name, std::vector<float>* values,
                         std::function<void(const Status&)> done) {
  Request request;
  request.name = name;
  request.buffers.push_back({values->data(), values->data(), static_cast<int64_t>(values->size())});
  request.signature = Signature(Kind::kAllreduce)
                          .Add(kOpField, "Sum")
                          .AddTensor(DataType::kFloat32, {request.buffers[0].count})
                          .text();
  request.done = std::move(done);
  return request;
}

}  // namespace tfddl
