#include "transport/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace tfddl {
namespace {

// The lowest limit of a group and the groups around it. In a container the path may be the one outside of it,
// so that only the first directory, the container's own, is there.
size_t LowestLimit(const std::string& hierarchy, std::string group, const char* file) {
  size_t lowest = SIZE_MAX;
  for (;;) {
    size_t limit = 0;
    if (std::ifstream(hierarchy + group + "/" + file) >> limit) lowest = std::min(lowest, limit);
    if (group.empty()) return lowest;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

size_t HostMemory(const std::string& root) {
  auto memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:/path
    const size_t controllers = line.find(':'), path = line.find(":/", controllers + 1);
    if (controllers == std::string::npos || path == std::string::npos) continue;
    const std::string names = line.substr(controllers, path - controllers) + ",";
    const std::string group = line.substr(path + 1);
    if (names == ":,") {  // version 2
      memory = std::min(memory, LowestLimit(root + "/sys/fs/cgroup", group, "memory.max"));
    } else if (names == ":memory,") {
      memory = std::min(memory, LowestLimit(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return memory;
}

}  // namespace tfddl
