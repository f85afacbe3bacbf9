#include "api/call_api.h"

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "core/compiled/run_call.h"
#include "core/process/process.h"
#include "core/process/rank_query.h"

namespace {

using tfddl::Call;
using tfddl::CallContext;
using tfddl::Status;
using Engine = std::shared_ptr<tfddl::Engine>;

int Failed(const Status& status, const std::string& name) {
  tfddl::SetLastError("tfddl '" + name + "': " + status.message());
  return static_cast<int>(status.code());
}

// Steps of TensorFlow, runs on the host and runs on GPUs (core/compiled/run_call.cc) have separate ranges of
// numbers.
CallContext OnHost(int32_t* run) {
  constexpr int64_t kFirst = int64_t{1} << 62;
  static std::atomic<uint32_t> last{0};
  while (*run == 0) *run = static_cast<int32_t>(++last);
  return {kFirst + static_cast<uint32_t>(*run), -1, nullptr};
}

CallContext ContextOf(int gpu, void* stream, int32_t* run) {
  return gpu < 0 ? OnHost(run) : CallContext{0, gpu, stream};
}

Status RunRankQuery(const Call& call, void* where, const CallContext& context) {
  int answer = 0;
  Status status = tfddl::QueryRank(call.rank_query, call.process_set, &answer);
  if (!status.ok()) return status;
  if (context.gpu < 0) {
    *static_cast<int*>(where) = answer;
    return status;
  }
  Engine engine;
  status = tfddl::FindEngine(0, &engine);
  return status.ok() ? engine->Store(context.gpu, context.stream, static_cast<int*>(where), answer) : status;
}

// Decodes the call each time, which takes a few microseconds. A cache would grow: nobody tells when XLA drops
// a program.
int Guarded(const char* text, size_t length, const std::function<Status(const Call&)>& run) {
  try {
    const Call call = Call::Decode(std::string(text, length));
    const Status status = run(call);
    return status.ok() ? 0 : Failed(status, call.rank_query.empty() ? call.name : call.rank_query);
  } catch (const std::exception& error) {  // a program of another version, or no memory
    return Failed({tfddl::Code::kUnknown, error.what()}, "XLA");
  }
}

Status WithEngine(const Call& call, const std::function<Status(const Engine&)>& run) {
  Engine engine;
  const Status found = tfddl::FindEngine(call.process_set, &engine);
  return found.ok() ? run(engine) : found;
}

}  // namespace

int tfddl_call(const char* call, size_t length, const void* const* in, void* const* out, int32_t* run) {
  const CallContext context = OnHost(run);
  return Guarded(call, length, [&](const Call& read) {
    if (!read.rank_query.empty()) return RunRankQuery(read, out[0], context);
    return WithEngine(read,
                      [&](const Engine& engine) { return tfddl::RunCall(engine, read, in, out, context); });
  });
}

int tfddl_start(const char* call, size_t length, const void* const* in, void* const* out, int gpu,
                void* stream, int32_t* run) {
  const CallContext context = ContextOf(gpu, stream, run);
  return Guarded(call, length, [&](const Call& read) {
    if (!read.rank_query.empty()) return RunRankQuery(read, out[0], context);
    return WithEngine(read,
                      [&](const Engine& engine) { return tfddl::StartCall(engine, read, in, out, context); });
  });
}

int tfddl_finish(const char* call, size_t length, void* const* out, int gpu, void* stream, int32_t run) {
  const CallContext context = ContextOf(gpu, stream, &run);
  return Guarded(call, length, [&](const Call& read) {
    return WithEngine(read,
                      [&](const Engine& engine) { return tfddl::FinishCall(engine, read, out, context); });
  });
}

int tfddl_rank_query(const char* query, const char* name, int process_set, int* answer) {
  const Status status = tfddl::QueryRank(query, process_set, answer);
  return status.ok() ? 0 : Failed(status, name);
}
