// The one engine of this process that TensorFlow kernels and Python reach.
#pragma once

#include <memory>
#include <string>

#include "core/engine.h"
#include "core/watchdog.h"

namespace tfddl {

struct Process {
  std::shared_ptr<Engine> engine;
  std::unique_ptr<Watchdog> watchdog;
};

// The current engine, or null before init and after shutdown. Kernels keep it for as long as they may call
// it; one that has been stopped meanwhile refuses what they submit.
std::shared_ptr<Engine> CurrentEngine();

// This process among those on its host, which the engine does not know.
struct LocalPlace {
  int rank;
  int size;
};
LocalPlace CurrentLocalPlace();
void SetLocalPlace(LocalPlace place);

// Raises: std::logic_error when there is one already.
void StartProcess(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  WatchdogOptions options);

// True when all peers agreed to end within `limit_s` seconds; only then may communicators be freed. Else
// SetLastError() tells why.
bool StopProcess(double limit_s);

// What tfddl_last_error() returns on this thread (c_api.h).
void SetLastError(const std::string& text);

}  // namespace tfddl
