#include "gpu/gpu_api.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>

namespace tfddl {
namespace {

// All functions exist since 2.14, and NcclConfig since 2.17. The GPU builds of TensorFlow 2.16 and later
// bring 2.19 or later.
constexpr int kOldestNccl = 21800;
constexpr char kInstallNccl[] =
    "install NCCL (pip install --no-deps --upgrade nvidia-nccl-cu12), or set TFDDL_NCCL_LIBRARY to the path "
    "of a libnccl.so.2 of version 2.18 or later";
constexpr char kInstallCuda[] =
    "install NVIDIA's driver, or set TFDDL_CUDA_LIBRARY to the path of its libcuda.so.1";

std::mutex wheel_mutex;
std::string* const wheel = new std::string;  // empty: no wheel

std::string FromEnvironment(const char* variable, const std::string& otherwise) {
  const char* value = std::getenv(variable);
  return value && *value ? value : otherwise;
}

// Uses neither RTLD_DEFAULT nor RTLD_GLOBAL: the GPU build of TensorFlow exports its own functions with the
// names of NCCL's and CUDA's functions.
class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) {
      const char* reason = dlerror();
      path_ = reason ? reason : path;
      return;
    }
    link_map* map = nullptr;
    path_ = dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && *map->l_name ? map->l_name : path;
  }
  ~Library() {
    if (handle_ && !kept_) dlclose(handle_);
  }

  bool opened() const { return handle_ != nullptr; }
  const std::string& path() const { return path_; }  // of the file; if it did not open, the reason
  void Keep() { kept_ = true; }

  template <typename Function>
  bool Find(const char* name, Function* function) const {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    return *function != nullptr;
  }

 private:
  void* handle_;
  std::string path_;
  bool kept_ = false;
};

std::string BindCuda(const Library& library, GpuApi* api) {
  if (!library.opened())
    return "CUDA's driver library did not open (" + library.path() + "): " + kInstallCuda;
#define TFDDL_FIND(name, result, arguments) \
  if (!library.Find(#name, &api->name))     \
    return library.path() +                 \
           " has no " #name ", so it is no CUDA driver of version 12 or later: " + kInstallCuda;
  TFDDL_CUDA_FUNCTIONS(TFDDL_FIND)
#undef TFDDL_FIND
  return "";
}

std::string BindNccl(const Library& library, GpuApi* api) {
  if (!library.opened()) return "NCCL did not open (" + library.path() + "): " + kInstallNccl;
  int (*version)(int*) = nullptr;
  if (!library.Find("ncclGetVersion", &version) || version(&api->nccl_version) != kNcclSuccess) {
    return library.path() + " does not tell its version, so it is no NCCL: " + kInstallNccl;
  }
  const std::string found = library.path() + " is NCCL " + NcclVersionText(api->nccl_version);
  if (api->nccl_version < kOldestNccl) return found + ", and tfddl needs 2.18 or later: " + kInstallNccl;
#define TFDDL_FIND(name, result, arguments) \
  if (!library.Find(#name, &api->name)) return found + ", but has no " #name ": " + kInstallNccl;
  TFDDL_NCCL_FUNCTIONS(TFDDL_FIND)
#undef TFDDL_FIND
  return "";
}

}  // namespace

std::string NcclVersionText(int version) {
  // Up to 2.8 the unit was 1000.
  const int unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

GpuLibraries DefaultGpuLibraries() {
  std::lock_guard<std::mutex> lock(wheel_mutex);
  return {FromEnvironment("TFDDL_CUDA_LIBRARY", "libcuda.so.1"),
          FromEnvironment("TFDDL_NCCL_LIBRARY", wheel->empty() ? "libnccl.so.2" : *wheel)};
}

void SetNcclWheel(const std::string& path) {
  std::lock_guard<std::mutex> lock(wheel_mutex);
  *wheel = path;
}

int FindNccl(std::string* error) {
  GpuApi api;
  const Library nccl(DefaultGpuLibraries().nccl);
  *error = BindNccl(nccl, &api);
  return error->empty() ? api.nccl_version : 0;
}

std::unique_ptr<GpuApi> GpuApi::Open(const GpuLibraries& libraries, std::string* error) {
  auto api = std::make_unique<GpuApi>();
  Library cuda(libraries.cuda);
  *error = BindCuda(cuda, api.get());
  if (!error->empty()) return nullptr;
  Library nccl(libraries.nccl);
  *error = BindNccl(nccl, api.get());
  if (!error->empty()) return nullptr;
  api->nccl_path = nccl.path();
  cuda.Keep();
  nccl.Keep();
  return api;
}

void GpuApi::CheckCuda(int code, const char* call) const {
  if (code == kCudaSuccess) return;
  const char* text = nullptr;
  cuGetErrorString(code, &text);
  throw std::runtime_error(std::string("CUDA's ") + call + " failed: " + (text ? text : "unknown error") +
                           " (" + std::to_string(code) +
                           "); run nvidia-smi to see whether GPU and driver work");
}

void GpuApi::CheckNccl(int code, const char* call) const {
  if (code == kNcclSuccess || code == kNcclInProgress) return;
  throw std::runtime_error(std::string("NCCL's ") + call + " failed: " + ncclGetErrorString(code) + " (" +
                           std::to_string(code) + "); set NCCL_DEBUG=INFO to see more");
}

}  // namespace tfddl
