// The transport of a member that shares its host with some members: it reaches them through shared memory,
// and all others through the network.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"

namespace tfddl {

// `local[rank]`: the rank in `near` of rank `rank` of `far`, or -1 if that one runs on another host.
std::unique_ptr<Transport> MakeHostTransport(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far,
                                             std::vector<int> local);

}  // namespace tfddl
