#include "core/process.h"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace tfddl {
namespace {

std::mutex mutex;
Process* process = nullptr;
int64_t generation = 0;
std::atomic<Engine*> current{nullptr};

}  // namespace

Engine* CurrentEngine() { return current.load(std::memory_order_acquire); }

void StartProcess(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  WatchdogOptions options) {
  std::lock_guard<std::mutex> lock(mutex);
  if (process) throw std::logic_error("tfddl is initialised already");
  options.generation = ++generation;
  auto fresh = std::make_unique<Process>();
  fresh->engine = std::make_unique<Engine>(std::move(data));
  fresh->watchdog = std::make_unique<Watchdog>(std::move(control), fresh->engine.get(), options);
  current.store(fresh->engine.get(), std::memory_order_release);
  process = fresh.release();
}

bool StopProcess(double limit_s) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!process) return true;
  process->watchdog->AnnounceShutdown();
  const bool answered = process->engine->Shutdown(limit_s);
  if (!answered) process->engine->Fail("the other ranks did not answer the shutdown of this rank");
  const bool agreed = !process->engine->failure();
  current.store(nullptr, std::memory_order_release);
  if (agreed) {
    process->watchdog.reset();
    process->engine.reset();
    delete process;
  } else {
    // Transfers may be under way and kernels may wait, so the rest is leaked. A failed engine makes no MPI
    // call any more; nor does the watchdog after this, so that MPI can be finalized.
    process->watchdog->Stop();
  }
  process = nullptr;
  return agreed;
}

}  // namespace tfddl
