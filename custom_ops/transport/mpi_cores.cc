// Counts the cores that the ranks of this host share.
#include <mpi.h>
#include <sched.h>

#include <cstdint>

#include "base/environment.h"
#include "transport/mpi.h"
#include "transport/mpi_check.h"

namespace tfddl {

bool MayBusyPoll(const void* communicator) {
  const auto wish = ReadSwitch("TFDDL_BUSY_POLL");
  MPI_Comm local = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_split_type(*static_cast<const MPI_Comm*>(communicator), MPI_COMM_TYPE_SHARED, 0,
                               MPI_INFO_NULL, &local),
           "MPI_Comm_split_type");
  int members = 0;
  CheckMpi(MPI_Comm_size(local, &members), "MPI_Comm_size");
  // mpirun may have bound each rank to cores of its own. On a host with more cores than a cpu_set_t has, the
  // call fails, and none counts.
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  constexpr int kWords = sizeof(cores) / sizeof(uint64_t);
  CheckMpi(MPI_Allreduce(MPI_IN_PLACE, &cores, kWords, MPI_UINT64_T, MPI_BOR, local), "MPI_Allreduce");
  MPI_Comm_free(&local);
  return wish.value_or(CPU_COUNT(&cores) >= members);
}

}  // namespace tfddl
