// The interface of collectives on GPUs. The engine uses it beside a Transport, over which ranks vote and
// exchange sizes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/request.h"
#include "core/collectives/collective.h"
#include "core/topology/participants.h"

namespace tfddl {

// A point in a stream of work on a GPU.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;

  // Makes all later work on `stream` of the same GPU wait for this point. From any thread.
  // Raises: std::runtime_error.
  virtual void HoldBack(void* stream) const = 0;
};

// The collectives of one process set. For its engine's thread only.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // The order of the calls has to be the same on all members: it is the order on the GPU. Raises nothing. An
  // error that all members see becomes the collective's status; on any other error Poll() throws and the job
  // fails.
  virtual std::unique_ptr<Collective> Start(Lane lane, const Request& request, Post post) = 0;

  // Later collectives share the GPUs with collectives of other sets. All members call this between the same
  // two collectives.
  virtual void ShareGpu() = 0;

  // Ends the work on the GPU after the job has failed. Nobody polls the started collectives any more.
  virtual void Abort() = 0;
};

// The GPU of this process. It opens no library before the first call.
class DevicePlane {
 public:
  virtual ~DevicePlane() = default;

  // An event after the current work on `stream` of GPU `ordinal`, for Request::ready. From any thread. Never
  // fails: the members agree on an error later.
  virtual std::shared_ptr<DeviceEvent> Record(int ordinal, void* stream) = 0;

  // Stores a number in memory of GPU `ordinal`, by work on `stream`. From any thread.
  virtual Status Store(int ordinal, void* stream, int* target, int value) = 0;

  // The reason why `request` cannot run on GPUs; empty if it can. The same for equal signatures.
  virtual std::string Objection(const Request& request, const Participants& participants) const = 0;

  // `set`: the name of the process set, for errors.
  virtual std::unique_ptr<DeviceQueue> Join(const std::string& set) = 0;
};

}  // namespace tfddl
