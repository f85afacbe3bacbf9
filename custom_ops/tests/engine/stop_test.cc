// An engine that is stopped while threads use it: each request is answered once, and no memory is used after
// its end. Most useful under the thread and the address sanitizer.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "core/process/process.h"
#include "tests/engine/job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

std::unique_ptr<Transport> Alone() {
  static MemoryWorld* world = nullptr;
  world = new MemoryWorld(1);  // outlives engines that a failure has leaked
  return world->Join(0);
}

std::shared_ptr<Engine> Current() {
  std::shared_ptr<Engine> engine;
  CHECK(FindEngine(0, &engine).ok() == (engine != nullptr));
  return engine;
}

// Uses the engine as kernels do, from many threads, until `end`.
class Callers {
 public:
  Callers(int threads, bool cancel) {
    for (int thread = 0; thread < threads; ++thread) {
      threads_.emplace_back([this, thread, cancel] { Work("n" + std::to_string(thread), cancel); });
    }
  }

  void Join() {
    end_ = true;
    for (auto& thread : threads_) thread.join();
  }

  std::atomic<int> ran{0}, refused{0}, without{0};

 private:
  void Work(const std::string& name, bool cancel) {
    while (!end_) {
      const auto engine = Current();
      if (!engine) {
        ++without;
        std::this_thread::yield();
        continue;
      }
      std::vector<float> values(10, 1.0f);
      std::atomic<int> answers{0};
      // TensorFlow's cancellation callback holds the engine too; the last thread drops it.
      engine->Submit(Allreduce(name, &values, [&answers, this, engine](const Status& status) {
        ++(status.ok() ? ran : refused);
        ++answers;
      }));
      if (cancel) engine->Cancel(name);
      while (!answers) std::this_thread::yield();
      CHECK(answers == 1);
      engine->Cancel(name);  // a request that is done: no effect
    }
  }

  std::atomic<bool> end_{false};
  std::vector<std::thread> threads_;
};

void TestStoppedWhileInUse(bool cancel) {
  Callers callers(4, cancel);
  std::atomic<int>& answered = cancel ? callers.refused : callers.ran;
  for (int round = 0; round < 30 || !answered || !callers.without; ++round) {
    StartProcess(Alone(), Alone(), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const bool agreed = StopProcess(30);
    CHECK(agreed || cancel);
    CHECK(!Current());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  callers.Join();
}

// A thread that took the engine before Stop() is refused, on the calling thread.
void TestRefusedAfterStop() {
  StartProcess(Alone(), Alone(), {});
  const auto engine = Current();
  CHECK(StopProcess(30));
  std::vector<float> values(3);
  Status answer;
  engine->Submit(Allreduce("late", &values, [&answer](const Status& status) { answer = status; }));
  CHECK(answer.code() == Code::kUnknown);
  CHECK(answer.message().find("tfddl has been shut down on this rank (0); call hvd.init()") == 0);
  engine->Cancel("late");
}

// Stop() without a shutdown: waiting requests fail.
void TestStopWithoutShutdown() {
  Job job(2);
  std::vector<float> values(3);
  Outcomes outcomes(1);
  job.engines[0]->Submit(Allreduce("x", &values, outcomes.At(0)));
  job.engines[0]->Stop();
  CHECK(outcomes.Wait()[0].message().find("tfddl has been shut down on this rank (0); call hvd.init()") == 0);
}

// Stop() ends the wait of Shutdown().
void TestStopEndsShutdown() {
  Job job(2);
  std::thread leaver([&] { job.engines[0]->Shutdown(1e6); });  // the other rank never answers
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  job.engines[0]->Stop();
  leaver.join();
}

// Keeps data unsent, without a handle, until it has been asked so often that an engine which does not wait
// for unsent data has stopped.
class Late : public Transport {
 public:
  explicit Late(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int tags() const override { return inner_->tags(); }
  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    const std::string text(static_cast<const char*>(data), bytes);
    if (tag <= 3) return inner_->Send(peer, tag, data, bytes);
    kept_.push_back([this, peer, tag, text] { inner_->Send(peer, tag, text.data(), text.size()); });
    return kNothing;
  }
  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return inner_->Receive(peer, tag, data, bytes);
  }
  bool Test(Handle handle) override { return inner_->Test(handle); }
  void Cancel(Handle handle) override { inner_->Cancel(handle); }
  bool unsent() override {
    if (!kept_.empty() && ++asked_ > 400) {
      for (const auto& send : std::exchange(kept_, {})) send();
    }
    return !kept_.empty();
  }

 private:
  std::unique_ptr<Transport> inner_;
  std::vector<std::function<void()>> kept_;
  int asked_ = 0;
};

// No rank leaves before all data for its peers has left.
void TestLeavesNothingUnsent() {
  MemoryWorld world(2);
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(std::make_unique<Engine>(std::make_unique<Late>(world.Join(0))));
  engines.push_back(std::make_unique<Engine>(world.Join(1)));
  std::vector<std::vector<float>> values = {Values(0, 0, 5), Values(1, 0, 5)};
  Outcomes outcomes(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    Request request = Allreduce("x", &values[rank], outcomes.At(rank));
    request.kind = Kind::kBroadcast;
    engines[rank]->Submit(std::move(request));
  }
  for (size_t rank = 0; rank < 2; ++rank) {  // after all have submitted: a shutdown fails waiting requests
    threads.emplace_back([&engines, rank] {
      CHECK(engines[rank]->Shutdown(250));
      engines[rank]->Stop();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  CHECK(values[1] == Values(0, 0, 5));
}

// The engine acts on a failure that comes at any moment of its round: waiting requests fail. (An engine that
// slept with a failure that it had not acted on never woke.)
void TestFailedAtAnyMoment() {
  for (int round = 0; round < 1000; ++round) {
    Job job(2);
    std::vector<float> values(3);
    Outcomes outcomes(1);
    job.engines[0]->Submit(Allreduce("x", &values, outcomes.At(0)));
    const auto moment = std::chrono::steady_clock::now() + std::chrono::nanoseconds(150 * round);
    while (std::chrono::steady_clock::now() < moment) {
    }
    job.engines[0]->Fail("it is over");
    CHECK(outcomes.Wait()[0].message() == "it is over");
  }
}

// Loses the data that it sends, so that collectives do not end. Moves bytes by itself if asked to, as MPI.
class Broken : public Transport {
 public:
  Broken(std::unique_ptr<Transport> inner, bool by_itself)
      : inner_(std::move(inner)), by_itself_(by_itself) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int tags() const override { return inner_->tags(); }
  bool moves_by_itself() const override { return by_itself_; }
  std::shared_ptr<Arena> arena() const override { return inner_->arena(); }
  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    return tag <= 3 ? inner_->Send(peer, tag, data, bytes) : kNothing;
  }
  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return inner_->Receive(peer, tag, data, bytes);
  }
  bool Test(Handle handle) override { return inner_->Test(handle); }
  void Cancel(Handle handle) override { inner_->Cancel(handle); }

 private:
  std::unique_ptr<Transport> inner_;
  const bool by_itself_;
};

// After a failure in the middle of a collective, the next job of the process frees the engine and the arena
// of the failed one. Memory of the collective stays if MPI may still write to it.
void TestNextJobFreesTheFailedOne(bool by_itself) {
  const ShmWorld world(2, SmallGeometry(), size_t{1} << 20);
  auto* control = new MemoryWorld(2);  // the watchdog of the failed job stays
  auto peer = std::make_shared<Engine>(std::make_unique<Broken>(world.Join(1), false));
  StartProcess(std::make_unique<Broken>(world.Join(0), by_itself), control->Join(0), {});
  std::vector<std::vector<float>> values(2, std::vector<float>(10, 1.0f));
  Outcomes outcomes(2);
  std::weak_ptr<Engine> engine;
  std::weak_ptr<Arena> arena;
  std::weak_ptr<int> tensors;
  {
    const auto current = Current();
    engine = current, arena = current->arena();
    Request request = Allreduce("x", &values[0], outcomes.At(0));
    const auto kept = std::make_shared<int>();
    request.keep_alive = kept, tensors = kept;
    current->Submit(std::move(request));
    peer->Submit(Allreduce("x", &values[1], outcomes.At(1)));
    while (current->recorder().counters.bytes_reduced == 0) std::this_thread::yield();
  }
  CHECK(!StopProcess(0.1));
  CHECK(engine.lock() && arena.lock() && tensors.lock());
  StartProcess(Alone(), Alone(), {});
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!engine.expired() || !arena.expired()) {
    CHECK(std::chrono::steady_clock::now() < late);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(tensors.expired() == !by_itself);
  CHECK(StopProcess(30));
  peer->Stop();
  CHECK(!outcomes.Wait()[0].ok());
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestStoppedWhileInUse(false);
  tfddl::TestStoppedWhileInUse(true);
  tfddl::TestRefusedAfterStop();
  tfddl::TestStopWithoutShutdown();
  tfddl::TestStopEndsShutdown();
  tfddl::TestLeavesNothingUnsent();
  tfddl::TestFailedAtAnyMoment();
  for (bool by_itself : {false, true}) tfddl::TestNextJobFreesTheFailedOne(by_itself);
  std::puts("stop: ok");
  return 0;
}
