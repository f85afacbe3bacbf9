// The transport over MPI's point-to-point messages. No MPI type appears here, so callers need no mpi.h.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.h"

namespace tfddl {

// `communicator` points to an MPI_Comm that only this transport uses. The owner frees it after the transport.
// Raises: std::runtime_error if MPI's thread level is below MPI_THREAD_MULTIPLE.
std::unique_ptr<Transport> MakeMpiTransport(const void* communicator);

// The transport for the engine's data: shared memory between ranks of a host, MPI between hosts.
// `communicator` is as above. All members call this function at the same time.
// Raises: std::runtime_error, also for a wrong TFDDL_TRANSPORT or TFDDL_HIERARCHICAL_ALLREDUCE.
std::unique_ptr<Transport> MakeDataTransport(const void* communicator);

// Whether the members on this host may use as many cores as there are members, unless TFDDL_BUSY_POLL says 0
// or 1. All members call this function at the same time. Raises: std::runtime_error for another
// TFDDL_BUSY_POLL.
bool MayBusyPoll(const void* communicator);

// The number of the next job, equal on all members: one more than the greatest that this function has
// returned to any of them. All members call this function at the same time.
int64_t NextGeneration(const void* communicator);

}  // namespace tfddl
