// The C ABI by which code that a compiler made reaches the engine (custom_ops/xla).
#pragma once

#include <stddef.h>

#include "core/c_api.h"

// Runs a call to its end. `call` is a Call as text (core/call.h), `in` and `out` the memory of the op's
// inputs and outputs. Returns 0, or a Code (core/types.h) and leaves the reason to tfddl_last_error().
TFDDL_EXPORT int tfddl_call(const char* call, size_t length, const void* const* in, void* const* out);

// Stores this process's place in a process set (core/place.h) in *answer. Returns as tfddl_call() does.
TFDDL_EXPORT int tfddl_place(const char* what, int process_set, int* answer);
