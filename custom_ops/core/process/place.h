// A process's place in its job, as ops ask for it when they run.
#pragma once

#include <string>

#include "base/types.h"

namespace tfddl {

// `what` is "rank" or "size" in the set, "local_rank" or "local_size" on the host, or "included": 1 or 0, and
// where there is no such set what Horovod's process_set_included_op answers; that one never fails.
Status FindPlace(const std::string& what, int set, int* answer);

}  // namespace tfddl
