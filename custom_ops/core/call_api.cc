#include "core/call_api.h"

#include <exception>
#include <memory>
#include <string>

#include "core/place.h"
#include "core/process.h"
#include "core/run_call.h"

namespace {

int Failed(const tfddl::Status& status, const std::string& name) {
  tfddl::SetLastError("tfddl '" + name + "': " + status.message());
  return static_cast<int>(status.code());
}

int Run(const tfddl::Call& call, const void* const* in, void* const* out) {
  if (!call.place.empty()) {
    return tfddl_place(call.place.c_str(), call.process_set, static_cast<int*>(out[0]));
  }
  std::shared_ptr<tfddl::Engine> engine;
  tfddl::Status status = tfddl::FindEngine(call.process_set, &engine);
  if (status.ok()) status = tfddl::RunCall(engine.get(), call, in, out);
  return status.ok() ? 0 : Failed(status, call.name);
}

}  // namespace

// Read anew each time, which takes a few microseconds beside a vote and copies. A cache would have to keep
// what XLA drops without a word.
int tfddl_call(const char* call, size_t length, const void* const* in, void* const* out) {
  try {
    return Run(tfddl::Call::Decode(std::string(call, length)), in, out);
  } catch (const std::exception& error) {  // a program of another version, or no memory
    return Failed({tfddl::Code::kUnknown, error.what()}, "XLA");
  }
}

int tfddl_place(const char* what, int process_set, int* answer) {
  const tfddl::Status status = tfddl::FindPlace(what, process_set, answer);
  return status.ok() ? 0 : Failed(status, what);
}
