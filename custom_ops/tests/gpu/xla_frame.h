// Stands in for XLA, which calls the handlers on GPUs: call frames, the stream of a rank, and the receiver of
// errors. Each thread has the engine of its rank.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/compiled/run_call.h"
#include "tests/gpu/gpu_job.h"
#include "xla/api.h"
#include "xla/ffi/api/ffi.h"
#include "xla/handlers.h"

struct XLA_FFI_Error {
  int code;
  std::string text;
};
struct XLA_FFI_ExecutionContext {
  tfddl::GpuJob* job;
  size_t rank;
};

namespace tfddl {

inline thread_local XLA_FFI_ExecutionContext here;
inline thread_local std::string last_error;

// As api/call_api.cc, but with the engine of the thread's rank.
inline int Answer(const Status& status) {
  last_error = status.message();
  return static_cast<int>(status.code());
}
inline CallContext ContextOf(int gpu, void* stream) {
  CHECK(gpu == here.job->gpus[here.rank] && stream == here.job->streams[here.rank]);
  return {0, gpu, stream};
}
inline const std::shared_ptr<Engine>& MyEngine() { return here.job->job->engines[here.rank]; }
inline int Start(const char* call, size_t length, const void* const* in, void* const* out, int gpu,
                 void* stream, int32_t*) {
  const Call read = Call::Decode(std::string(call, length));
  if (!read.rank_query.empty()) return Answer(MyEngine()->Store(gpu, stream, static_cast<int*>(out[0]), 7));
  return Answer(StartCall(MyEngine(), read, in, out, ContextOf(gpu, stream)));
}
inline int Finish(const char* call, size_t length, void* const* out, int gpu, void* stream, int32_t) {
  const Call read = Call::Decode(std::string(call, length));
  return Answer(FinishCall(MyEngine(), read, out, ContextOf(gpu, stream)));
}
inline const char* LastError() { return last_error.c_str(); }

// The handlers are in another object file and need this function, even if all calls here are inlined.
__attribute__((used)) inline TfddlEngineFunctions& EngineFunctions() {
  static TfddlEngineFunctions functions = {nullptr, Start, Finish, nullptr, LastError};
  return functions;
}

inline XLA_FFI_Error* Create(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{static_cast<int>(args->errc), args->message};
}
inline XLA_FFI_Error* StreamOf(XLA_FFI_Stream_Get_Args* args) {
  args->stream = args->ctx->job->streams[args->ctx->rank];
  return nullptr;
}
inline XLA_FFI_Error* OrdinalOf(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = args->ctx->job->gpus[args->ctx->rank];
  return nullptr;
}

inline XLA_FFI_Api MakeApi() {
  XLA_FFI_Api api;
  std::memset(&api, 0, sizeof api);
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  api.api_version.major_version = XLA_FFI_API_MAJOR;
  api.api_version.minor_version = XLA_FFI_API_MINOR;
  api.XLA_FFI_Error_Create = Create;
  api.XLA_FFI_Stream_Get = StreamOf;
  api.XLA_FFI_DeviceOrdinal_Get = OrdinalOf;
  return api;
}

// The frame of one call: buffers of float32 in one dimension.
class Frame {
 public:
  Frame(const Call& call, const std::vector<float*>& args, const std::vector<float*>& rets)
      : text_(call.Encode()), args_(args.size()), rets_(rets.size()) {
    Describe(args, &args_, &arg_pointers_);
    Describe(rets, &rets_, &ret_pointers_);
    arg_types_.assign(args.size(), XLA_FFI_ArgType_BUFFER);
    ret_types_.assign(rets.size(), XLA_FFI_RetType_BUFFER);
  }

  // The error's text; empty: none.
  std::string Run(XLA_FFI_Handler* handler) {
    static const XLA_FFI_Api api = MakeApi();
    XLA_FFI_ByteSpan name{kTargetAttribute, std::strlen(kTargetAttribute)};
    XLA_FFI_ByteSpan* names[] = {&name};
    XLA_FFI_ByteSpan value{text_.data(), text_.size()};
    void* values[] = {&value};
    XLA_FFI_AttrType types[] = {XLA_FFI_AttrType_STRING};
    XLA_FFI_CallFrame frame;
    std::memset(&frame, 0, sizeof frame);
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api;
    frame.ctx = &here;
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(args_.size()), arg_types_.data(),
                  arg_pointers_.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(rets_.size()), ret_types_.data(),
                  ret_pointers_.data()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 1, types, names, values};
    const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
    return error ? error->text : "";
  }

 private:
  static void Describe(const std::vector<float*>& memory, std::vector<XLA_FFI_Buffer>* buffers,
                       std::vector<void*>* pointers) {
    static int64_t dims[] = {1};
    for (size_t i = 0; i < memory.size(); ++i) {
      (*buffers)[i] = {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, XLA_FFI_DataType_F32, memory[i], 1, dims};
      pointers->push_back(&(*buffers)[i]);
    }
  }

  std::string text_;
  std::vector<XLA_FFI_Buffer> args_, rets_;
  std::vector<void*> arg_pointers_, ret_pointers_;
  std::vector<XLA_FFI_ArgType> arg_types_;
  std::vector<XLA_FFI_RetType> ret_types_;
};

}  // namespace tfddl
