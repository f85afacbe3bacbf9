// The name of this host.
#pragma once

#include <unistd.h>

#include <string>

namespace tfddl {

inline std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace tfddl
