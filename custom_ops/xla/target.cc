// The function that compiled programs call.
#include <optional>
#include <string>
#include <vector>

#include "core/types.h"
#include "xla/api.h"
#include "xla/compat.h"
#include "xla/service/custom_call_status_internal.h"
#include "xla/service/custom_call_target_registry.h"
#if TFDDL_XLA_FFI
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();  // its header needs protobuf's and half of XLA's
}  // namespace xla::ffi
#endif

namespace tfddl {
namespace {

TfddlEngineFunctions functions;

#if TFDDL_XLA_FFI

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

ffi::Error Run(std::string_view call, ffi::RemainingArgs args, ffi::RemainingRets results) {
  std::vector<const void*> in;
  std::vector<void*> out;
  for (size_t i = 0; i < args.size(); ++i) in.push_back(args.get<ffi::AnyBuffer>(i)->untyped_data());
  for (size_t i = 0; i < results.size(); ++i) {
    out.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  const int code = functions.call(call.data(), call.size(), in.data(), out.data());
  if (code != 0) return ffi::Error(ToErrorCode(code), functions.last_error());
  *static_cast<int32_t*>(out.back()) = 0;  // the token
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(
    kHandler, Run, ffi::Ffi::Bind().Attr<std::string_view>(kTargetAttribute).RemainingArgs().RemainingRets());

const char* Register() {
  XLA_FFI_Error* error = ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), kTarget, "Host", kHandler);
  return error ? "XLA did not take the handler of its custom calls" : nullptr;
}

#else

// `opaque` is the number of results, a colon, and the call.
void Run(void* out, const void** in, const char* opaque, size_t length, XlaCustomCallStatus_* status) {
  const std::string text(opaque, length);
  const size_t colon = text.find(':');
  void* const* results = static_cast<void* const*>(out);
  const int code = functions.call(text.data() + colon + 1, length - colon - 1, in, results);
  if (code != 0) {
    status->message = functions.last_error();
    return;
  }
  *static_cast<int32_t*>(results[std::stoul(text.substr(0, colon)) - 1]) = 0;  // the token
}

const char* Register() {
  auto* registry = xla::CustomCallTargetRegistry::Global();
  registry->Register(kTarget, reinterpret_cast<void*>(&Run), "Host");
  return nullptr;
}

#endif

}  // namespace

const TfddlEngineFunctions& EngineFunctions() { return functions; }

}  // namespace tfddl

const char* tfddl_xla_attach(TfddlEngineFunctions given) {
  tfddl::functions = given;
  // A name that is taken, by another copy of this library, would end the process.
  if (xla::CustomCallTargetRegistry::Global()->Lookup(tfddl::kTarget, "Host")) {
    return "another copy of tfddl's XLA kernels is loaded in this process";
  }
  return tfddl::Register();
}
