#include "xla/handlers.h"

#if TFDDL_XLA_FFI
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "xla/api.h"
#include "xla/ffi/api/ffi.h"

namespace tfddl {
namespace {

namespace ffi = xla::ffi;

ffi::ErrorCode ToErrorCode(int code) {
  switch (static_cast<Code>(code)) {
    case Code::kInvalidArgument:
      return ffi::ErrorCode::kInvalidArgument;
    case Code::kFailedPrecondition:
      return ffi::ErrorCode::kFailedPrecondition;
    case Code::kCancelled:
      return ffi::ErrorCode::kCancelled;
    case Code::kResourceExhausted:
      return ffi::ErrorCode::kResourceExhausted;
    default:
      return ffi::ErrorCode::kUnknown;
  }
}

ffi::Error Outcome(int code) {
  if (code == 0) return ffi::Error::Success();
  return ffi::Error(ToErrorCode(code), EngineFunctions().last_error());
}

std::vector<const void*> In(ffi::RemainingArgs args) {
  std::vector<const void*> in;
  for (size_t i = 0; i < args.size(); ++i) in.push_back(args.get<ffi::AnyBuffer>(i)->untyped_data());
  return in;
}

std::vector<void*> Out(ffi::RemainingRets results) {
  std::vector<void*> out;
  for (size_t i = 0; i < results.size(); ++i) {
    out.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  return out;
}

// On the host, the last operand and the last result are the token, whose value is the number of the run.
int32_t RunOf(const std::vector<const void*>& in) { return *static_cast<const int32_t*>(in.back()); }

ffi::Error PassRunOn(int code, int32_t run, const std::vector<void*>& out) {
  *static_cast<int32_t*>(out.back()) = run;
  return Outcome(code);
}

ffi::Error RunCall(std::string_view call, ffi::RemainingArgs args, ffi::RemainingRets results) {
  const auto in = In(args);
  const auto out = Out(results);
  int32_t run = RunOf(in);
  const int code = EngineFunctions().call(call.data(), call.size(), in.data(), out.data(), &run);
  return PassRunOn(code, run, out);
}

ffi::Error Start(std::string_view call, ffi::RemainingArgs args, ffi::RemainingRets results) {
  const auto in = In(args);
  const auto out = Out(results);
  int32_t run = RunOf(in);
  const int code =
      EngineFunctions().start(call.data(), call.size(), in.data(), out.data(), -1, nullptr, &run);
  return PassRunOn(code, run, out);
}

ffi::Error Finish(std::string_view call, ffi::RemainingArgs args, ffi::RemainingRets results) {
  const int32_t run = RunOf(In(args));
  const auto out = Out(results);
  const int code = EngineFunctions().finish(call.data(), call.size(), out.data(), -1, nullptr, run);
  return PassRunOn(code, run, out);
}

auto Binding() {
  return ffi::Ffi::Bind().Attr<std::string_view>(kTargetAttribute).RemainingArgs().RemainingRets();
}

#if TFDDL_XLA_GPU

// On a GPU, nothing reads the token, and the thread identifies the run.
ffi::Error StartGpu(std::string_view call, void* stream, int32_t gpu, ffi::RemainingArgs args,
                    ffi::RemainingRets results) {
  return Outcome(EngineFunctions().start(call.data(), call.size(), In(args).data(), Out(results).data(), gpu,
                                         stream, nullptr));
}

ffi::Error FinishGpu(std::string_view call, void* stream, int32_t gpu, ffi::RemainingArgs,
                     ffi::RemainingRets results) {
  return Outcome(EngineFunctions().finish(call.data(), call.size(), Out(results).data(), gpu, stream, 0));
}

auto GpuBinding() {
  return ffi::Ffi::Bind()
      .Attr<std::string_view>(kTargetAttribute)
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets();
}

#endif

}  // namespace

#define TFDDL_DEFINE_HANDLER(name, function, binding)      \
  XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) {          \
    static auto* handler = binding.To(function).release(); \
    return handler->Call(frame);                           \
  }

TFDDL_DEFINE_HANDLER(CallOnHost, RunCall, Binding())
TFDDL_DEFINE_HANDLER(StartOnHost, Start, Binding())
TFDDL_DEFINE_HANDLER(FinishOnHost, Finish, Binding())
#if TFDDL_XLA_GPU
TFDDL_DEFINE_HANDLER(StartOnGpu, StartGpu, GpuBinding())
TFDDL_DEFINE_HANDLER(FinishOnGpu, FinishGpu, GpuBinding())
#endif

}  // namespace tfddl
#endif
