// How much memory this process may use.
#pragma once

#include <cstddef>
#include <string>

namespace tfddl {

// The memory of the machine in bytes, or the limit of a control group of this process, such as a container's,
// if one is lower. `root`: a directory with `proc` and `sys`, for tests.
size_t HostMemory(const std::string& root = "");

}  // namespace tfddl
