// A rank that asks the others for their flight records waits until each has written its own or has ended.
#include "base/wire.h"
#include "core/watchdog/liveness.h"
#include "tests/engine/job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

constexpr int64_t kHello = 2;

double SecondsToCollect(Watchdog* watchdog, double limit_s) {
  const int64_t begun = NowMicros();
  watchdog->CollectRecords("a test", limit_s);
  return static_cast<double>(NowMicros() - begun) * 1e-6;
}

void TestAllAnswer() {
  Job job(3);
  CHECK(SecondsToCollect(job.watchdogs[1].get(), 60) < 30);
  job.End();
}

// Three ranks. The last one has no watchdog, so that it answers nobody.
struct SilentJob {
  SilentJob() {
    for (int rank : {0, 1}) {
      engines.push_back(std::make_shared<Engine>(data.Join(rank)));
      watchdogs.push_back(
          std::make_unique<Watchdog>(control.Join(rank), engines.back(), WatchdogOptions{30, 60, 0}));
    }
  }

  MemoryWorld data{3}, control{3};
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
};

// Another rank that answers twice does not stand for the silent one.
void TestAskTwice() {
  SilentJob job;
  for (int times = 0; times < 2; ++times) CHECK(SecondsToCollect(job.watchdogs[0].get(), 0.3) > 0.29);
}

void TestEndedProcess() {
  auto process = ProcessId::Mine();
  if (!process) return;  // an emulator
  ++process->started;    // an earlier process with this PID
  SilentJob job;
  WireWriter hello;
  hello.Int(0);  // the generation
  hello.Int(kHello);
  hello.String(process->Encode());
  std::string bytes = hello.bytes();
  bytes.resize(2048);
  const auto silent = job.control.Join(2);
  for (int rank : {0, 1}) silent->Send(rank, 0, bytes.data(), bytes.size());
  CHECK(SecondsToCollect(job.watchdogs[0].get(), 20) < 10);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestAllAnswer();
  tfddl::TestAskTwice();
  tfddl::TestEndedProcess();
  std::puts("collect records: ok");
  return 0;
}
