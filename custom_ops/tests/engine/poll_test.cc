// Threads that submit requests and run the engine's rounds themselves.
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <thread>

#include "tests/engine/poll_job.h"

namespace tfddl {
namespace {

// Each rank has a thread that waits for each result. Rank 0 is late now and then.
void TestChains(int size, int count) {
  Job job(size, 0, Polling());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < job.engines.size(); ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < count; ++i) {
        if (rank == 0 && i % 50 == 7) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        std::vector<float> values(static_cast<size_t>(1 + i % 3 * 4000), static_cast<float>(rank) + 0.5f);
        CHECK(Run(job.engines[rank].get(), Allreduce("x" + std::to_string(i % 5), &values, nullptr)).ok());
        const float sum = 0.5f * static_cast<float>(size * size);
        for (float value : values) CHECK(value == sum);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  job.End();
}

// Each result submits the next request, as in a graph, on the thread that answers; two chains at once.
void TestContinuations(int size, int count) {
  Job job(size, 0, Polling());
  std::atomic<int> open{2 * size};
  std::vector<std::vector<std::vector<float>>> values(job.engines.size(), {{1.0f}, {2.0f}});
  std::function<void(size_t, size_t, int)> next = [&](size_t rank, size_t chain, int left) {
    if (left == 0) {
      --open;
      return;
    }
    auto* const value = &values[rank][chain];
    (*value)[0] = static_cast<float>(chain + 1);
    Request request = Allreduce("c" + std::to_string(chain) + "." + std::to_string(left), value,
                                [&, rank, chain, left, value](const Status& status) {
                                  CHECK(status.ok());
                                  CHECK((*value)[0] == static_cast<float>((chain + 1) * job.engines.size()));
                                  next(rank, chain, left - 1);
                                });
    job.engines[rank]->Submit(std::move(request));
  };
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < job.engines.size(); ++rank) {
    for (size_t chain : {0, 1}) threads.emplace_back([&, rank, chain] { next(rank, chain, count); });
  }
  for (auto& thread : threads) thread.join();
  while (open > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  job.End();
}

// How many of `count` requests end on the threads that submit them, on rank 0. Rank 1 is `late`.
int EndedHere(int count, EngineOptions options, std::chrono::microseconds late) {
  Job job(2, 0, options);
  std::vector<int> here(2);
  std::vector<std::thread> threads;
  for (size_t rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      std::vector<float> values(1);
      for (int i = 0; i < count; ++i) {
        values[0] = 1.0f;
        Request request = Allreduce("x", &values, nullptr);
        if (rank == 1) std::this_thread::sleep_for(late);
        std::thread::id ended;
        CHECK(Run(job.engines[rank].get(), std::move(request), &ended).ok() && values[0] == 2.0f);
        here[rank] += ended == std::this_thread::get_id();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t rank : {0, 1}) {
    CHECK(static_cast<int>(job.engines[rank]->recorder().counters.polled) == here[rank]);
  }
  job.End();
  return here[0];
}

void TestWhoPolls() {
  const std::chrono::microseconds soon{0};
  const std::chrono::milliseconds late{30};  // longer than a busy machine stops a thread that polls
  CHECK(EndedHere(400, {}, soon) == 0);
  CHECK(EndedHere(400, Polling(), soon) > 20);
  CHECK(EndedHere(60, Polling(), late) < 20);
}

// TensorFlow's threads flush denormal numbers. A thread that polls does not, and flushes them again
// afterwards. The engine's thread does not even if the thread that starts the engine does.
void TestDenormalNumbers(EngineOptions options) {
#ifdef __SSE2__
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  Job job(2, 0, std::move(options));
  std::vector<std::thread> threads;
  for (size_t rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 200; ++i) {
        std::vector<float> values(1);
        uint32_t bits = 100;  // 100 times the smallest float
        std::memcpy(values.data(), &bits, sizeof(bits));
        CHECK(Run(job.engines[rank].get(), Allreduce("x", &values, nullptr)).ok());
        std::memcpy(&bits, values.data(), sizeof(bits));
        CHECK(bits == 200);
        CHECK((_mm_getcsr() & 0x8040) == 0x8040);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  job.End();
  _mm_setcsr(before);
#endif
}

// Two requests of a step: an error of the first is the cause of an error of the second, which is polled for.
void TestTheCauseComesFirst() {
  Job job(2, 0, Polling());
  std::vector<std::thread> threads;
  for (size_t rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      for (int64_t step = 1; step <= 200; ++step) {
        std::vector<float> values(1 + rank), others(1, 1.0f);
        std::promise<void> first, second;
        std::atomic<bool> caused{false};
        // Its outputs need the completion thread, so that no thread polls for it.
        Request bad = Allreduce("bad", &values, [&](const Status& status) {
          CHECK(status.code() == Code::kFailedPrecondition);
          caused = true;
          first.set_value();
        });
        bad.kind = Kind::kAllgather;
        Request good = Allreduce("good", &others, [&](const Status& status) {
          CHECK(status.ok() ? others[0] == 2.0f : status.code() == Code::kCancelled && caused);
          second.set_value();
        });
        bad.step = good.step = step;
        job.engines[rank]->Submit(std::move(bad));
        job.engines[rank]->Submit(std::move(good));
        first.get_future().wait();
        second.get_future().wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  job.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::OverBothTransports([] {
    for (int size : {1, 2, 3}) {
      tfddl::TestChains(size, 300);
      tfddl::TestContinuations(size, 300);
    }
    tfddl::TestWhoPolls();
    tfddl::TestDenormalNumbers(tfddl::Polling());
    tfddl::TestDenormalNumbers({});
    tfddl::TestTheCauseComesFirst();
  });
  std::puts("poll: ok");
  return 0;
}
