// The C ABI by which programs that XLA compiled reach the engine (custom_ops/xla).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "api/c_api.h"

// All return 0 or a Code (base/types.h); tfddl_last_error() has the reason. `call` is an encoded Call
// (core/compiled/call.h), `in` and `out` are the memory of the op's inputs and outputs. `gpu` is -1 and
// `stream` null on the host; else see CallContext (core/compiled/run_call.h).

// Runs a call to its end, on the host. *run is the number of the program's run; if 0, a new number is stored
// in it.
TFDDL_EXPORT int tfddl_call(const char* call, size_t length, const void* const* in, void* const* out,
                            int32_t* run);

// The same in two steps, which belong together by the call's name and the run. On a GPU the calling thread
// identifies the run, and `run` may be null. A rank query ends with the first.
TFDDL_EXPORT int tfddl_start(const char* call, size_t length, const void* const* in, void* const* out,
                             int gpu, void* stream, int32_t* run);
TFDDL_EXPORT int tfddl_finish(const char* call, size_t length, void* const* out, int gpu, void* stream,
                              int32_t run);

// See QueryRank() in core/process/rank_query.h. `name` is the op that an error names.
TFDDL_EXPORT int tfddl_rank_query(const char* query, const char* name, int process_set, int* answer);
