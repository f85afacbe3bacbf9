// Transport of a member that shares its host with some of the others: memory for those, the network
// for the rest.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"

namespace tfddl {

// `local[rank]` is the rank that a member of `far` has in `near`, or -1 when it runs on another host.
std::unique_ptr<Transport> MakeHostTransport(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far,
                                             std::vector<int> local);

}  // namespace tfddl
