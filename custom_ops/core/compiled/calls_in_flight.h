// What compiled programs have started and not finished yet.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "core/compiled/call_memory.h"

namespace tfddl {

class DeviceEvent;
class Engine;

// How far a call has come. Set by the engine, waited for by the program.
class Outcome {
 public:
  void SetEnded(const Status& status);
  void SetLaunched(std::shared_ptr<DeviceEvent> end);  // on a GPU
  bool ended() const;
  Status Wait() const;
  // Until it has been launched or has ended. The event is null where it has not been launched.
  std::pair<Status, std::shared_ptr<DeviceEvent>> WaitForLaunch() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Status> status_;
  std::shared_ptr<DeviceEvent> end_;
};

struct StartedCall {
  std::weak_ptr<Engine> engine;
  int64_t step = 0;
  std::string key;  // of its request
  std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
  std::shared_ptr<CallMemory> memory;  // on the host
  std::vector<void*> out;              // on a GPU
};

class CallsInFlight {
 public:
  static CallsInFlight& Global();

  // Drops what programs have left behind that failed elsewhere: what has ended and has the same name, and
  // all of engines that are gone.
  void Add(std::shared_ptr<StartedCall> started);

  // Null when there is none.
  std::shared_ptr<StartedCall> Take(const std::shared_ptr<Engine>& engine, int64_t step,
                                    const std::string& key);
  std::vector<std::shared_ptr<StartedCall>> TakeStep(const std::shared_ptr<Engine>& engine, int64_t step);

  // For GPUs, where a program may come to a call before the GPU has ended that of the run before: waits for
  // the end of what was last given here with this name, and remembers `next` for the next one.
  void WaitForLast(const std::shared_ptr<Engine>& engine, const std::string& key,
                   std::shared_ptr<Outcome> next);

 private:
  struct Last {
    std::weak_ptr<Engine> engine;
    std::string key;
    std::shared_ptr<Outcome> outcome;
  };

  std::mutex mutex_;
  std::list<std::shared_ptr<StartedCall>> started_;
  std::list<Last> last_;
};

}  // namespace tfddl
