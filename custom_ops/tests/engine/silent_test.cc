// Members that stop answering: in a vote, in a transfer, at the end. The waits of the others end with an
// error that names these members.
#include <atomic>
#include <chrono>

#include "tests/engine/job.h"
#include "tests/engine/join_job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

// Seconds; a wait without a fault is shorter, even on a loaded machine and under a sanitizer.
constexpr double kLimit = 1.5;

// A member that may fall silent at any time: from then on it neither sends nor receives.
class Mortal : public Transport {
 public:
  Mortal(std::unique_ptr<Transport> inner, std::atomic<bool>* silent)
      : inner_(std::move(inner)), silent_(silent) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int tags() const override { return inner_->tags(); }
  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    return *silent_ ? kNothing : inner_->Send(peer, tag, data, bytes);
  }
  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return inner_->Receive(peer, tag, data, bytes);
  }
  bool Test(Handle handle) override { return !*silent_ && inner_->Test(handle); }
  void Cancel(Handle handle) override { inner_->Cancel(handle); }

 private:
  std::unique_ptr<Transport> inner_;
  std::atomic<bool>* silent_;
};

// The last member can be silenced.
struct MortalJob {
  explicit MortalJob(int size, double limit_s) : data(size), control(size) {
    for (int rank = 0; rank < size; ++rank) {
      auto* silent = rank == size - 1 ? &last_silent : &nobody_silent;
      engines.push_back(std::make_shared<Engine>(std::make_unique<Mortal>(data.Join(rank), silent)));
      watchdogs.push_back(std::make_unique<Watchdog>(std::make_unique<Mortal>(control.Join(rank), silent),
                                                     engines.back(),
                                                     WatchdogOptions{limit_s / 2, limit_s, 0}));
    }
  }

  ~MortalJob() { last_silent = false; }  // or all watchdogs would wait for its last messages

  std::vector<Status> AllreduceOnAll(const std::string& name, size_t count, int silence_after_ms = -1) {
    std::vector<std::vector<float>> values(engines.size() - 1, std::vector<float>(count, 1.0f));
    auto last = std::make_shared<std::vector<float>>(count, 1.0f);
    Outcomes outcomes(values.size());
    for (size_t rank = 0; rank < values.size(); ++rank) {
      engines[rank]->Submit(Allreduce(name, &values[rank], outcomes.At(rank)));
    }
    Request request = Allreduce(name, last.get(), [](const Status&) {});
    request.keep_alive = last;
    if (!last_silent) engines.back()->Submit(std::move(request));
    if (silence_after_ms >= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(silence_after_ms));
      last_silent = true;
    }
    return outcomes.Wait();
  }

  MemoryWorld data, control;
  std::atomic<bool> last_silent{false}, nobody_silent{false};
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
};

void CheckNamed(const Status& status, int rank) {
  CHECK(status.code() == Code::kUnknown);
  CHECK(status.message().find("rank " + std::to_string(rank) + " does not answer") != std::string::npos);
}

void TestSilentInAVote(int size) {
  MortalJob job(size, kLimit);
  for (const Status& status : job.AllreduceOnAll("before", 100)) CHECK(status.ok());
  job.last_silent = true;
  for (const Status& status : job.AllreduceOnAll("after", 100)) CheckNamed(status, size - 1);
}

// The transfer of 64 MB is not done when the member falls silent.
void TestSilentInATransfer(int size) {
  for (int after_ms : {0, 2}) {
    MortalJob job(size, kLimit);
    for (const Status& status : job.AllreduceOnAll("large", size_t{16} << 20, after_ms)) {
      if (!status.ok()) CheckNamed(status, size - 1);
    }
  }
}

// The joined ranks wait for it, and it does nothing. Another rank's collectives would keep the join waiting.
void TestSilentWhileOthersHaveJoined(int size) {
  MortalJob job(size, kLimit);
  Outcomes outcomes(static_cast<size_t>(size - 1));
  std::vector<int32_t> last(static_cast<size_t>(size - 1));
  for (size_t rank = 0; rank < last.size(); ++rank) {
    job.engines[rank]->Submit(Join(&last[rank], outcomes.At(rank)));
  }
  job.last_silent = true;
  for (const Status& status : outcomes.Wait()) {
    CheckNamed(status, size - 1);
    CHECK(status.message().find("for 'hvd.join()'") != std::string::npos);
  }
}

void TestSilentAtTheEnd(int size) {
  MortalJob job(size, 60);
  job.last_silent = true;
  for (int rank = 0; rank + 1 < size; ++rank) {
    const auto at = static_cast<size_t>(rank);
    job.watchdogs[at]->AnnounceShutdown(0.5);
  }
  CHECK(!job.engines[0]->Shutdown(4));  // the report is there after 1.3 s
  const std::string report = job.watchdogs[0]->ShutdownReport();
  CHECK(report.find("rank " + std::to_string(size - 1) + ": no answer") != std::string::npos);
}

// All ranks wait for different collectives: reported long before the warning, and the job goes on.
void TestDifferent() {
  Job job(2, 0, {}, {1.2, 60, 0});
  std::vector<std::vector<float>> values(4, std::vector<float>(2));
  Outcomes outcomes(4);
  job.engines[0]->Submit(Allreduce("a", &values[0], outcomes.At(0)));
  job.engines[1]->Submit(Allreduce("b", &values[1], outcomes.At(1)));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // a test with real ranks checks the output
  job.engines[1]->Submit(Allreduce("a", &values[2], outcomes.At(2)));
  job.engines[0]->Submit(Allreduce("b", &values[3], outcomes.At(3)));
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  job.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {2, 3}) tfddl::TestSilentInAVote(size);
  tfddl::TestSilentInATransfer(3);
  for (int size : {2, 3}) tfddl::TestSilentWhileOthersHaveJoined(size);
  tfddl::TestSilentAtTheEnd(3);
  tfddl::TestDifferent();
  std::puts("silent: ok");
  return 0;
}
