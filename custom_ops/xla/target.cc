// Registers the functions that compiled programs call.
#include <optional>
#include <string>

#include "xla/api.h"
#include "xla/compat.h"
#include "xla/handlers.h"
#include "xla/service/custom_call_status_internal.h"
#include "xla/service/custom_call_target_registry.h"
#if TFDDL_XLA_FFI
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();  // its header needs protobuf's and half of XLA's
}  // namespace xla::ffi
#endif

namespace tfddl {

TfddlEngineFunctions& EngineFunctions() {
  static TfddlEngineFunctions functions;
  return functions;
}

namespace {

#if TFDDL_XLA_FFI

const char* Register() {
  const auto add = [](const char* name, const char* platform, XLA_FFI_Handler* handler) {
    return !xla::ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), name, platform, handler);
  };
  bool added = add(kCallTarget, "Host", CallOnHost) && add(kStartTarget, "Host", StartOnHost) &&
               add(kFinishTarget, "Host", FinishOnHost);
#if TFDDL_XLA_GPU
  added = added && add(kStartTarget, "CUDA", StartOnGpu) && add(kFinishTarget, "CUDA", FinishOnGpu);
#endif
  return added ? nullptr : "internal error: XLA did not register tfddl's custom calls";
}

#else

// The arguments of a custom call. `opaque` is "inputs:results:call": the numbers of inputs and results, and
// the encoded Call. The last input and the last result are the token, whose value is the number of the run.
class Frame {
 public:
  Frame(void* out, const void** in, const char* opaque, size_t length)
      : in_(in), out_(static_cast<void* const*>(out)), text_(opaque, length) {
    const size_t first = text_.find(':'), second = text_.find(':', first + 1);
    run = *static_cast<const int32_t*>(in[std::stoul(text_) - 1]);
    token_ = static_cast<int32_t*>(out_[std::stoul(text_.substr(first + 1)) - 1]);
    text_.erase(0, second + 1);
  }
  const void* const* in() const { return in_; }
  void* const* out() const { return out_; }
  const char* call() const { return text_.data(); }
  size_t length() const { return text_.size(); }
  void End(int code, XlaCustomCallStatus_* status) const {
    *token_ = run;
    if (code != 0) status->message = EngineFunctions().last_error();
  }

  int32_t run;

 private:
  const void* const* in_;
  void* const* out_;
  int32_t* token_;
  std::string text_;
};

void RunCall(void* out, const void** in, const char* opaque, size_t length, XlaCustomCallStatus_* status) {
  Frame f(out, in, opaque, length);
  f.End(EngineFunctions().call(f.call(), f.length(), f.in(), f.out(), &f.run), status);
}

void Start(void* out, const void** in, const char* opaque, size_t length, XlaCustomCallStatus_* status) {
  Frame f(out, in, opaque, length);
  f.End(EngineFunctions().start(f.call(), f.length(), f.in(), f.out(), -1, nullptr, &f.run), status);
}

void Finish(void* out, const void** in, const char* opaque, size_t length, XlaCustomCallStatus_* status) {
  Frame f(out, in, opaque, length);
  f.End(EngineFunctions().finish(f.call(), f.length(), f.out(), -1, nullptr, f.run), status);
}

const char* Register() {
  auto* registry = xla::CustomCallTargetRegistry::Global();
  registry->Register(kCallTarget, reinterpret_cast<void*>(&RunCall), "Host");
  registry->Register(kStartTarget, reinterpret_cast<void*>(&Start), "Host");
  registry->Register(kFinishTarget, reinterpret_cast<void*>(&Finish), "Host");
  return nullptr;
}

#endif

}  // namespace
}  // namespace tfddl

const char* tfddl_xla_attach(TfddlEngineFunctions given) {
  tfddl::EngineFunctions() = given;
  // Registering a name twice, by another copy of this library, would end the process.
  if (xla::CustomCallTargetRegistry::Global()->Lookup(tfddl::kCallTarget, "Host")) {
    return "another copy of tfddl's XLA kernels is loaded in this process; import one tfddl only";
  }
  return tfddl::Register();
}

int tfddl_xla_has_gpus(void) { return TFDDL_XLA_GPU; }
