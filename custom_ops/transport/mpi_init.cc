// tfddl_init() and tfddl_add_set() over MPI: the place where engines meet their transports.
#include <exception>
#include <string>
#include <vector>

#include "core/c_api.h"
#include "core/process.h"
#include "transport/mpi.h"

namespace {

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
    tfddl::StartProcess(tfddl::MakeDataTransport(data), tfddl::MakeMpiTransport(control),
                        {warning_s, limit_s, 0});
  });
}

int tfddl_add_set(int set, const int* ranks, int count, const void* data) {
  return Caught([&] {
    tfddl::AddSet(set, std::vector<int>(ranks, ranks + count),
                  data ? tfddl::MakeDataTransport(data) : nullptr);
  });
}
