// Requests that cannot start, or that were cancelled before the engine knew them: all are answered.
#include <atomic>
#include <stdexcept>

#include "tests/engine/job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

// Carries votes and refuses data.
class NoData : public Transport {
 public:
  explicit NoData(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int tags() const override { return inner_->tags(); }
  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    return inner_->Send(peer, Checked(tag), data, bytes);
  }
  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return inner_->Receive(peer, Checked(tag), data, bytes);
  }
  bool Test(Handle handle) override { return inner_->Test(handle); }
  void Cancel(Handle handle) override { inner_->Cancel(handle); }

 private:
  static int Checked(int tag) {
    if (tag > 3) throw std::runtime_error("out of memory");
    return tag;
  }
  std::unique_ptr<Transport> inner_;
};

// All buckets of a sequence are answered, also on the rank where the first bucket cannot start.
void TestCannotStart() {
  constexpr int kBuckets = 3;
  MemoryWorld data(2), control(2);
  std::vector<std::shared_ptr<Engine>> engines = {
      std::make_shared<Engine>(std::make_unique<NoData>(data.Join(0))),
      std::make_shared<Engine>(data.Join(1))};
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
  for (int rank = 0; rank < 2; ++rank) {
    watchdogs.push_back(std::make_unique<Watchdog>(control.Join(rank), engines[static_cast<size_t>(rank)],
                                                   WatchdogOptions{}));
  }
  std::vector<std::vector<float>> values(2 * kBuckets, std::vector<float>(4));
  Outcomes outcomes(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    Request request = Allreduce("step", &values[i], outcomes.At(i));
    request.bucket = static_cast<int>(i) % kBuckets;
    request.buckets = kBuckets;
    engines[i / kBuckets]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.code() == Code::kUnknown);
    CHECK(status.message().find("rank 0 could not start 'step#") == 0);
    CHECK(status.message().find(": out of memory") != std::string::npos);
  }
}

// Cancel() comes from another thread than Submit(), and may come first.
void TestCancelledBeforeSubmit() {
  Job job(2);
  std::vector<float> a(2), b(2);
  Outcomes outcomes(2);
  job.engines[1]->Submit(Allreduce("b", &b, outcomes.At(1)));
  const auto cancelled = std::make_shared<std::atomic<bool>>(true);
  job.engines[0]->Cancel("a");
  Request request = Allreduce("a", &a, outcomes.At(0));
  request.cancelled = cancelled;
  job.engines[0]->Submit(std::move(request));
  for (const Status& status : outcomes.Wait()) {
    CHECK(status.code() == Code::kUnknown);
    CHECK(status.message().find("rank 0: the step that 'a' belongs to failed or was cancelled") == 0);
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestCannotStart();
  tfddl::TestCancelledBeforeSubmit();
  std::puts("start: ok");
  return 0;
}
