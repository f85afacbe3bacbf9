// tfddl_init() and tfddl_add_set() over MPI, and NCCL: this file connects engines and transports.
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/c_api.h"
#include "core/process/process.h"
#include "gpu/nccl.h"
#include "transport/mpi.h"

namespace {

// The GPUs of this process, for all its jobs. Leaked: kernels may run until the process ends.
std::shared_ptr<tfddl::DevicePlane> Gpu() {
  static const auto* plane = new std::shared_ptr<tfddl::DevicePlane>(tfddl::MakeNcclPlane());
  return *plane;
}

template <typename Function>
int Caught(Function function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    tfddl::SetLastError(error.what());
    return -1;
  }
}

}  // namespace

int tfddl_init(const void* data, const void* control, double warning_s, double limit_s) {
  return Caught([&] {
    // Collectives of MPI: all ranks make them in this order.
    auto transport = tfddl::MakeDataTransport(data);
    auto messages = tfddl::MakeMpiTransport(control);  // from here on its errors return
    const bool busy_poll = tfddl::MayBusyPoll(data);
    const tfddl::WatchdogOptions watch = {warning_s, limit_s, tfddl::NextGeneration(control)};
    tfddl::StartProcess(std::move(transport), std::move(messages), watch, Gpu(), busy_poll);
  });
}

int tfddl_add_set(int set, const int* ranks, int count, const void* data) {
  return Caught([&] {
    tfddl::AddSet(set, std::vector<int>(ranks, ranks + count),
                  data ? tfddl::MakeDataTransport(data) : nullptr);
  });
}

void tfddl_set_nccl_wheel(const char* path) { tfddl::SetNcclWheel(path); }

int tfddl_nccl_version(void) {
  std::string error;
  const int version = tfddl::FindNccl(&error);
  if (version == 0) tfddl::SetLastError(error);
  return version;
}
