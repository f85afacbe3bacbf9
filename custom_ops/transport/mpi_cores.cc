// Counts the cores that the ranks of this host share.
#include <mpi.h>
#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "transport/mpi.h"
#include "transport/mpi_check.h"

namespace tfddl {

bool MayBusyPoll(const void* communicator) {
  const char* value = std::getenv("TFDDL_BUSY_POLL");
  const std::string wish = value ? value : "";
  if (wish != "" && wish != "0" && wish != "1") {
    throw std::runtime_error("TFDDL_BUSY_POLL must be 0 or 1: set one of them. Received: '" + wish + "'");
  }
  MPI_Comm local = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_split_type(*static_cast<const MPI_Comm*>(communicator), MPI_COMM_TYPE_SHARED, 0,
                               MPI_INFO_NULL, &local),
           "MPI_Comm_split_type");
  int members = 0;
  CheckMpi(MPI_Comm_size(local, &members), "MPI_Comm_size");
  // mpirun may have bound each rank to cores of its own.
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores),
                    &cores);  // fails on hosts with more cores than a cpu_set_t: none counts
  constexpr int kWords = sizeof(cores) / sizeof(uint64_t);
  CheckMpi(MPI_Allreduce(MPI_IN_PLACE, &cores, kWords, MPI_UINT64_T, MPI_BOR, local), "MPI_Allreduce");
  MPI_Comm_free(&local);
  return wish == "1" || (wish != "0" && CPU_COUNT(&cores) >= members);
}

}  // namespace tfddl
