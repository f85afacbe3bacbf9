// A request as the engine describes it to the watchdog.
#pragma once

#include <cstdint>
#include <string>

namespace tfddl {

// A request that has been submitted and is not done.
struct LiveRequest {
  std::string key;
  int64_t waited_us = 0;
  int set = 0;          // the process set in which it was submitted
  bool joined = false;  // hvd.join(), from when this rank takes no part in the set
  std::string note;     // see Engine::Note
};

}  // namespace tfddl
