// The one engine of this process that TensorFlow kernels and Python reach. It is leaked, not
// destroyed, where a thread might still use it.
#pragma once

#include <memory>
#include <string>

#include "core/engine.h"
#include "core/watchdog.h"

namespace tfddl {

struct Process {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Watchdog> watchdog;
};

// The current engine, or null before init and after shutdown.
Engine* CurrentEngine();

// Raises: std::logic_error when there is one already.
void StartProcess(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  WatchdogOptions options);

// True when all peers agreed to end within `limit_s` seconds; only then may communicators be freed.
bool StopProcess(double limit_s);

// What tfddl_last_error() returns on this thread (c_api.h).
void SetLastError(const std::string& text);

}  // namespace tfddl
