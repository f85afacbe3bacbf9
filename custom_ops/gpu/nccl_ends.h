// Ends communicators of NCCL, each on a thread of its own: ncclCommDestroy waits for the other ranks of the
// host, which may keep theirs for a while, and ncclCommAbort may wait for a peer that is stopped.
#pragma once

#include <functional>
#include <memory>

#include "gpu/nccl_device.h"

namespace tfddl {

class NcclEnds {
 public:
  NcclEnds();
  // Waits for the threads, but not for ever: a peer may be gone. Then they go on by themselves.
  ~NcclEnds();

  // The communicator is idle, and not used any more.
  void Destroy(std::shared_ptr<const NcclDevice> device, NcclComm comm);
  // Ends running work too.
  void Abort(std::shared_ptr<const NcclDevice> device, NcclComm comm);

 private:
  struct Threads;
  void Run(std::function<void()> end);

  const std::shared_ptr<Threads> threads_;
};

}  // namespace tfddl
