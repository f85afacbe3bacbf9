// The C ABI of the library with the XLA kernels. It is its own library, because it needs headers and a build
// that not every TensorFlow has; the engine is in the main one, which gives it these functions.
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

// Called once, before anything is compiled. Returns null, or why compiled programs cannot reach us.
__attribute__((visibility("default"))) const char* tfddl_xla_attach(TfddlEngineFunctions functions);

// Whether programs on GPUs can reach us.
__attribute__((visibility("default"))) int tfddl_xla_has_gpus(void);
}

namespace tfddl {
TfddlEngineFunctions& EngineFunctions();

// The names by which programs call us, and of the attribute that describes the call: kernel.cc emits them,
// target.cc registers what they mean.
constexpr char kCallTarget[] = "tfddl_call";
constexpr char kStartTarget[] = "tfddl_start";
constexpr char kFinishTarget[] = "tfddl_finish";
constexpr char kTargetAttribute[] = "call";
}  // namespace tfddl
