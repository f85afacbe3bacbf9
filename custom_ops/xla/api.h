// The C ABI of the library with the XLA kernels. It is its own library, because it needs headers and a build
// that not every TensorFlow has; the engine is in the main one, which gives it these functions.
#pragma once

#include <stddef.h>

extern "C" {

struct TfddlEngineFunctions {  // core/call_api.h, core/c_api.h
  int (*call)(const char* call, size_t length, const void* const* in, void* const* out);
  int (*place)(const char* what, int process_set, int* answer);
  const char* (*last_error)(void);
};

// Called once, before anything is compiled. Returns null, or why compiled programs cannot reach us.
__attribute__((visibility("default"))) const char* tfddl_xla_attach(TfddlEngineFunctions functions);
}

namespace tfddl {
const TfddlEngineFunctions& EngineFunctions();
}  // namespace tfddl
