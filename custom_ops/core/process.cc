#include "core/process.h"

#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace tfddl {
namespace {

std::mutex mutex;
Process* process = nullptr;
int64_t generation = 0;

std::mutex current_mutex;                                              // never held while something waits
std::shared_ptr<Engine>* const current = new std::shared_ptr<Engine>;  // kernels may run until the very end

LocalPlace local_place = {0, 1};  // under current_mutex

std::shared_ptr<Engine> SwapCurrent(std::shared_ptr<Engine> engine) {
  std::lock_guard<std::mutex> lock(current_mutex);
  return std::exchange(*current, std::move(engine));
}

}  // namespace

std::shared_ptr<Engine> CurrentEngine() {
  std::lock_guard<std::mutex> lock(current_mutex);
  return *current;
}

LocalPlace CurrentLocalPlace() {
  std::lock_guard<std::mutex> lock(current_mutex);
  return local_place;
}

void SetLocalPlace(LocalPlace place) {
  std::lock_guard<std::mutex> lock(current_mutex);
  local_place = place;
}

void StartProcess(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  WatchdogOptions options) {
  std::lock_guard<std::mutex> lock(mutex);
  if (process) throw std::logic_error("tfddl is initialised already");
  options.generation = ++generation;
  auto fresh = std::make_unique<Process>();
  fresh->engine = std::make_shared<Engine>(std::move(data));
  fresh->watchdog = std::make_unique<Watchdog>(std::move(control), fresh->engine.get(), options);
  SwapCurrent(fresh->engine);
  process = fresh.release();
}

bool StopProcess(double limit_s) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!process) return true;
  process->watchdog->AnnounceShutdown(limit_s);
  if (!process->engine->Shutdown(limit_s)) {
    process->engine->Fail("rank " + std::to_string(process->engine->rank()) +
                          " has shut down tfddl, and not all other ranks have answered within " +
                          std::to_string(static_cast<int>(limit_s)) +
                          " seconds. All ranks: " + process->watchdog->ShutdownReport() + ".");
  }
  const auto failure = process->engine->failure();
  if (failure) SetLastError(*failure);
  const bool agreed = !failure;
  SwapCurrent(nullptr);
  if (agreed) {
    process->watchdog.reset();
    process->engine->Stop();
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
