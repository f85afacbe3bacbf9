// Answers the ops that return a rank or a size when they run.
#pragma once

#include <string>

#include "base/types.h"

namespace tfddl {

// Stores an int in *answer. `query` is "rank" or "size" in the process set, "local_rank" or "local_size" on
// the host, or "included". The latter never fails: 1 where this process is a member, 0 where it is not, -1
// before hvd.init(), and -3 where there is no set of this number (Horovod's codes).
Status QueryRank(const std::string& query, int set, int* answer);

}  // namespace tfddl
