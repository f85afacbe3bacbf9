// Runs calls of compiled programs as requests of the engine. The programs know no callbacks, so a call either
// waits, or has a start and an end.
#pragma once

#include <memory>
#include <vector>

#include "core/compiled/call.h"
#include "core/engine/engine.h"

namespace tfddl {

// The request of `call`, without signature, memory, root and callbacks.
Request ToRequest(const Call& call);

// The run that a call belongs to, and the device of its tensors.
struct CallContext {
  // The number of the program's run; see Request::step. StartCall() finds a number for a GPU.
  int64_t step = 0;
  int gpu = -1;            // CUDA's number of the GPU in this process; -1: the host
  void* stream = nullptr;  // the program's stream on that GPU
};

// Submits a call and returns. `in` has the inputs of the op, `out` its outputs, as `call` describes them. On
// the host the engine works on a copy, because transfers may touch memory even after a failure; `out` may be
// null. On a GPU the engine works on the program's memory, and this function first waits for the earlier call
// of the same name.
Status StartCall(const std::shared_ptr<Engine>& engine, const Call& call, const void* const* in,
                 void* const* out, CallContext context);

// Ends a started call. On the host it waits for the other ranks and copies the results to `out`. On a GPU it
// waits until the collective is on a stream, and makes the program's stream wait for the collective's event;
// `out` must be the one of StartCall(). After an error of either function, all other calls that the same run
// has started are cancelled.
Status FinishCall(const std::shared_ptr<Engine>& engine, const Call& call, void* const* out,
                  CallContext context);

// Both in one, on the host.
Status RunCall(const std::shared_ptr<Engine>& engine, const Call& call, const void* const* in,
               void* const* out, const CallContext& context = {});

}  // namespace tfddl
