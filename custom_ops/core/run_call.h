// From a call to an engine's request, and for compilers, whose programs know nothing of callbacks, to its
// end.
#pragma once

#include <vector>

#include "core/call.h"
#include "core/engine.h"

namespace tfddl {

// The request of `call` on tensors of these shapes, less what concerns memory, its root and whom to tell.
Request ToRequest(const Call& call, const std::vector<Shape>& inputs);

// Runs a call on the calling thread. `in` has the inputs of the op, `out` its outputs, as `call` describes
// them. They are not touched any more when this returns, whatever the outcome: what transfers may still touch
// after a failure is memory of our own. Waits for the other ranks.
Status RunCall(Engine* engine, const Call& call, const void* const* in, void* const* out);

}  // namespace tfddl
