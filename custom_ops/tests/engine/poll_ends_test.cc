// Engines that fail or stop while threads poll.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/engine/poll_job.h"
#include "tests/leaks.h"

namespace tfddl {
namespace {

// A failure, or a stop, while a thread polls: each request is answered once.
void TestEnds(bool stops) {
  for (int run = 0; run < 30; ++run) {
    Job job(2, 0, Polling());
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (size_t rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        for (int i = 0; i < 400; ++i) {
          std::vector<float> values(1, 1.0f);
          if (Run(job.engines[rank].get(), Allreduce("x", &values, nullptr)).ok()) continue;
          ++failed;
          return;
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100 * run));
    for (auto& engine : job.engines) {
      if (stops) {
        engine->Stop();
      } else {
        engine->Fail("planted");
      }
    }
    for (auto& thread : threads) thread.join();
    CHECK(failed == 2 || failed == 0);
    for (auto& engine : job.engines) engine->Stop();
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::OverBothTransports([] {
    tfddl::TestEnds(false);
    tfddl::TestEnds(true);
  });
  std::puts("poll_ends: ok");
  return 0;
}
