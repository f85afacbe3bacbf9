// The calls that compiled programs have started and not finished yet.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/types.h"
#include "core/compiled/call_memory.h"

namespace tfddl {

class DeviceEvent;
class Engine;

// The state of a call. The engine sets it, the program waits for it.
class Outcome {
 public:
  void SetEnded(const Status& status);
  void SetLaunched(std::shared_ptr<DeviceEvent> end);  // on a GPU
  bool ended() const;
  bool launched_or_ended() const;
  Status Wait() const;
  // Waits until the call has been launched or has ended. The event is null if it has not been launched.
  std::pair<Status, std::shared_ptr<DeviceEvent>> WaitForLaunch() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Status> status_;
  std::shared_ptr<DeviceEvent> end_;
};

struct StartedCall {
  std::thread::id thread = std::this_thread::get_id();
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

  // Also drops the calls that failed programs have left behind: ended calls of the same name, and all calls
  // of engines that are gone.
  void Add(std::shared_ptr<StartedCall> started);

  // Removes and returns a call of a step, or without a step the one that this thread has started, else any.
  // Null when there is none.
  std::shared_ptr<StartedCall> Take(const std::shared_ptr<Engine>& engine, std::optional<int64_t> step,
                                    const std::string& key);
  // Removes and returns all calls of a step, of all process sets.
  std::vector<std::shared_ptr<StartedCall>> TakeStep(int64_t step);

  // The step of the calls that this thread has started and not finished; 0: there are none.
  int64_t StepOfThread();

  // For GPUs, where a program may reach a call before the GPU has ended the same call of the run before.
  // Waits for the end of the last call with this name, and keeps `next` as the last one.
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
