// Transport over MPI point-to-point messages. The only header that names an MPI type is mpi.cc's own.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace tfddl {

// `communicator` points to an MPI_Comm that belongs to the transport alone until it is destroyed; its
// owner frees it then. MPI must have been initialised with MPI_THREAD_MULTIPLE.
// Raises: std::runtime_error when MPI gives a lower thread level.
std::unique_ptr<Transport> MakeMpiTransport(const void* communicator);

// The transport for the engine's data over the same kind of communicator: shared memory where ranks share
// a host, MPI elsewhere. All members call it at once; nothing else may use the communicator meanwhile.
// Raises: std::runtime_error, also for a wrong TFDDL_TRANSPORT.
std::unique_ptr<Transport> MakeDataTransport(const void* communicator);

}  // namespace tfddl
