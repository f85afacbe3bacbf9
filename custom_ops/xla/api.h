// The C ABI of the library with the XLA kernels. It is a library of its own, because not every TensorFlow has
// the headers that it needs. The main library, which has the engine, passes it these functions.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct TfddlEngineFunctions {  // api/call_api.h, api/c_api.h
  int (*call)(const char* call, size_t length, const void* const* in, void* const* out, int32_t* run);
  int (*start)(const char* call, size_t length, const void* const* in, void* const* out, int gpu,
               void* stream, int32_t* run);
  int (*finish)(const char* call, size_t length, void* const* out, int gpu, void* stream, int32_t run);
  int (*rank_query)(const char* query, const char* name, int process_set, int* answer);
  const char* (*last_error)(void);
};

// Called once, before the first compilation. Returns null, or the reason why compiled programs cannot call
// tfddl.
__attribute__((visibility("default"))) const char* tfddl_xla_attach(TfddlEngineFunctions functions);

// Whether programs on GPUs can call tfddl.
__attribute__((visibility("default"))) int tfddl_xla_has_gpus(void);
}

namespace tfddl {
TfddlEngineFunctions& EngineFunctions();

// The names of the custom calls, and of their attribute with the encoded Call. emit.cc emits them, target.cc
// registers their functions.
constexpr char kCallTarget[] = "tfddl_call";
constexpr char kStartTarget[] = "tfddl_start";
constexpr char kFinishTarget[] = "tfddl_finish";
constexpr char kTargetAttribute[] = "call";
}  // namespace tfddl
