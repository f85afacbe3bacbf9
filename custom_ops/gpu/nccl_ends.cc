#include "gpu/nccl_ends.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace tfddl {
namespace {

constexpr std::chrono::seconds kPatience{5};

}  // namespace

struct NcclEnds::Threads {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
};

NcclEnds::NcclEnds() : threads_(std::make_shared<Threads>()) {}

NcclEnds::~NcclEnds() {
  std::unique_lock<std::mutex> lock(threads_->mutex);
  threads_->changed.wait_for(lock, kPatience, [this] { return threads_->running == 0; });
}

void NcclEnds::Destroy(std::shared_ptr<const NcclDevice> device, NcclComm comm) {
  Run([device = std::move(device), comm] {
    const WithContext current(*device);  // else NCCL makes a context on the first GPU of the host
    device->api->ncclCommDestroy(comm);
  });
}

void NcclEnds::Abort(std::shared_ptr<const NcclDevice> device, NcclComm comm) {
  Run([device = std::move(device), comm] {
    const WithContext current(*device);
    device->api->ncclCommAbort(comm);
  });
}

void NcclEnds::Run(std::function<void()> end) {
  auto run = [threads = threads_, end = std::move(end)] {
    try {
      end();
    } catch (const std::exception&) {  // the GPU has failed, and nothing is left to end
    }
    std::lock_guard<std::mutex> lock(threads->mutex);
    --threads->running;
    threads->changed.notify_all();
  };
  {
    std::lock_guard<std::mutex> lock(threads_->mutex);
    ++threads_->running;
  }
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {  // the system refuses a new thread
    run();
  }
}

}  // namespace tfddl
