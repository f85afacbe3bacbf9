// Runs a call to its end on the calling thread: for compilers, whose programs know nothing of callbacks.
#pragma once

#include "core/call.h"
#include "core/engine.h"

namespace tfddl {

// `in` has the inputs of the op, `out` its outputs, as `call` describes them. They are not touched any more
// when this returns, whatever the outcome: what transfers may still touch after a failure is memory of our
// own. Waits for the other ranks.
Status RunCall(Engine* engine, const Call& call, const void* const* in, void* const* out);

}  // namespace tfddl
