// Moving bytes between GPUs, as the engine sees it. Beside the Transport, not instead of it: ranks agree, and
// tell each other sizes, over that one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/request.h"
#include "core/collectives/collective.h"
#include "core/collectives/participants.h"

namespace tfddl {

// A point in a stream of work on a GPU.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;

  // What is put on `stream` of the same GPU from now on waits for it. From any thread. Raises:
  // std::runtime_error.
  virtual void HoldBack(void* stream) const = 0;
};

// The collectives of one process set. For its engine's thread only.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // To be called in the order that all members agreed on, in which they start on the GPU. Raises nothing:
  // what goes wrong is the collective's status when the members know it alike, else its Poll() throws and the
  // job fails. `post` runs a function on the completion thread.
  virtual std::unique_ptr<Collective> Start(Lane lane, const Request& request,
                                            std::function<void(std::function<void()>)> post) = 0;

  // What is started from now on has to fit in with other sets' collectives on the same GPUs. All members call
  // this at one point of what they agreed on.
  virtual void ShareGpu() = 0;

  // The job has failed: ends what runs on the GPU. Collectives that were started are not polled any more.
  virtual void Abort() = 0;
};

// The GPU of this process. Does nothing, and opens no library, before it is given work.
class DevicePlane {
 public:
  virtual ~DevicePlane() = default;

  // For Request::ready: what was put on `stream` of GPU `ordinal` before the call is done. From any thread.
  // Never fails: an error comes up where all members learn of it.
  virtual std::shared_ptr<DeviceEvent> Record(int ordinal, void* stream) = 0;

  // Stores a number in memory of GPU `ordinal`, in the order of `stream`. From any thread.
  virtual Status Store(int ordinal, void* stream, int* where, int value) = 0;

  // Why `request` cannot run on GPUs, equal for equal signatures; empty when it can.
  virtual std::string Objection(const Request& request, const Participants& participants) const = 0;

  // `set`: in words, for errors.
  virtual std::unique_ptr<DeviceQueue> Join(const std::string& set) = 0;
};

}  // namespace tfddl
