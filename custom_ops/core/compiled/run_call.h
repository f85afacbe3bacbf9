// From a call to an engine's request, and for compilers, whose programs know nothing of callbacks, to its
// end.
#pragma once

#include <memory>
#include <vector>

#include "core/compiled/call.h"
#include "core/engine/engine.h"

namespace tfddl {

// The request of `call`, less its signature and what concerns memory, its root and whom to tell.
Request ToRequest(const Call& call);

// What a call belongs to, and where its tensors lie.
struct CallContext {
  int64_t step = 0;        // the number of one run of the program; see Request::step
  int gpu = -1;            // CUDA's number of the GPU in this process; -1: the tensors lie in host memory
  void* stream = nullptr;  // on which the program runs on that GPU
};

// Gives a call to the engine, and returns. `in` has the inputs of the op, `out` its outputs, as `call`
// describes them. Memory of the host is not touched after that: what transfers may touch, also after a
// failure, is memory of our own, and `out` may be null. On a GPU it is the program's; there it waits for the
// call of the same name before it, which the stream may not have come to yet.
Status StartCall(const std::shared_ptr<Engine>& engine, const Call& call, const void* const* in,
                 void* const* out, const CallContext& context);

// Ends what the same program has started. On the host it waits for the other ranks and copies the results to
// `out`; on a GPU it waits until the collective has been put on a stream, which then holds the program's
// back; `out` must be what StartCall() was given. After an error here or there, nothing that the same run of
// the program has started is waited for by anybody.
Status FinishCall(const std::shared_ptr<Engine>& engine, const Call& call, void* const* out,
                  const CallContext& context);

// Both, on the host.
Status RunCall(const std::shared_ptr<Engine>& engine, const Call& call, const void* const* in,
               void* const* out, const CallContext& context = {});

}  // namespace tfddl
