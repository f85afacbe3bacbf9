// tfddl_init() over MPI: the place where the engine meets its transport.
#include <exception>
#include <string>

#include "core/c_api.h"
#include "core/process.h"
#include "transport/mpi.h"

int tfddl_init(const void* data, const void* control, double warning_s, double limit_s) {
  try {
    tfddl::StartProcess(tfddl::MakeDataTransport(data), tfddl::MakeMpiTransport(control),
                        {warning_s, limit_s, 0});
    return 0;
  } catch (const std::exception& error) {
    tfddl::SetLastError(error.what());
    return -1;
  }
}
