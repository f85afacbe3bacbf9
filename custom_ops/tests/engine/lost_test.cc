// A member dies, and the transport of the watchdogs reports it: the other members fail at once, and none of
// their watchdogs ends because of a message to the dead member.
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>

#include "tests/engine/job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

// As MPI with fault tolerance (ULFM): calls for messages to and from the dead member fail.
class FaultTolerant : public Transport {
 public:
  FaultTolerant(std::unique_ptr<Transport> inner, const std::atomic<int>* dead)
      : inner_(std::move(inner)), dead_(dead) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int tags() const override { return inner_->tags(); }
  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    CheckAlive(peer);
    return Keep(inner_->Send(peer, tag, data, bytes), peer);
  }
  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return Keep(inner_->Receive(peer, tag, data, bytes), peer);
  }
  bool Test(Handle handle) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto peer = peers_.find(handle);
    const int number = peer == peers_.end() ? -1 : peer->second;
    lock.unlock();
    if (number >= 0) CheckAlive(number);
    return inner_->Test(handle);
  }
  void Cancel(Handle handle) override { inner_->Cancel(handle); }

 private:
  void CheckAlive(int peer) const {
    if (peer == *dead_) throw std::runtime_error("process failure");
  }
  Handle Keep(Handle handle, int peer) {
    std::lock_guard<std::mutex> lock(mutex_);
    peers_[handle] = peer;
    return handle;
  }

  std::unique_ptr<Transport> inner_;
  const std::atomic<int>* dead_;
  std::mutex mutex_;
  std::map<Handle, int> peers_;
};

void TestLost(int size, bool in_a_message) {
  MemoryWorld data(size), control(size);
  std::atomic<int> dead{-1};
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
  for (int rank = 0; rank < size; ++rank) {
    engines.push_back(std::make_shared<Engine>(data.Join(rank)));
    watchdogs.push_back(std::make_unique<Watchdog>(std::make_unique<FaultTolerant>(control.Join(rank), &dead),
                                                   engines.back(), WatchdogOptions{30, 60, 0}));
  }
  const auto living = static_cast<size_t>(size - 1);
  std::vector<std::vector<float>> values(living, std::vector<float>(10, 1.0f));
  Outcomes outcomes(living);
  for (size_t rank = 0; rank < living; ++rank) {
    engines[rank]->Submit(Allreduce("a", &values[rank], outcomes.At(rank)));
  }
  if (in_a_message) {
    for (auto& watchdog : watchdogs) watchdog->CollectRecords("a test", 0);
  }
  dead = size - 1;
  const int64_t begun = NowMicros();
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.code() == Code::kUnknown);
    CHECK(status.message().find("rank " + std::to_string(size - 1) + " has died") != std::string::npos);
    CHECK(status.message().find("process failure") != std::string::npos);
  }
  const int64_t failed = NowMicros();
  CHECK(failed - begun < 2000000);
  watchdogs[0]->CollectRecords("a test", 60);  // the dead member cannot write one
  CHECK(NowMicros() - failed < 30000000);
  dead = -1;  // or the last watchdog would not end
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {2, 3}) {
    for (bool in_a_message : {false, true}) tfddl::TestLost(size, in_a_message);
  }
  std::puts("lost: ok");
  return 0;
}
