#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/cuda_abi.h"
#include "tests/double/cuda/device.h"

namespace fake {
namespace {

constexpr int kMaxDevices = 64;
constexpr uintptr_t kFirstContext = 0x0c000000;

std::atomic<bool> initialized{false};
std::array<std::atomic<int>, kMaxDevices> errors{};
std::array<std::atomic<int>, kMaxDevices> retained{};
thread_local std::vector<int> contexts;  // the stack of current contexts, by device; -1 is no context

struct NamedError {
  int code;
  const char* name;
  const char* text;
};

constexpr NamedError kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
};

const NamedError* FindError(int code) {
  for (const NamedError& error : kErrors)
    if (error.code == code) return &error;
  return nullptr;
}

std::vector<int> ReadVisible() {
  std::vector<int> visible;
  const int devices = static_cast<int>(Setting("devices"));
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (int device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  // As in the driver, the list ends at the first entry that is no device.
  while (*text) {
    char* end = nullptr;
    const long device = std::strtol(text, &end, 10);
    if (end == text || device < 0 || device >= devices) break;
    visible.push_back(static_cast<int>(device));
    text = *end == ',' ? end + 1 : "";
  }
  return visible;
}

std::vector<int>& Visible() {
  static std::vector<int>* visible = new std::vector<int>(ReadVisible());
  return *visible;
}

bool Valid(CUdevice device) { return device >= 0 && device < VisibleDevices(); }

int DeviceOfContext(CUcontext context) {
  const uintptr_t number = reinterpret_cast<uintptr_t>(context) - kFirstContext;
  return number % 16 == 0 && number / 16 < kMaxDevices ? static_cast<int>(number / 16) : -1;
}

}  // namespace

bool Initialized() { return initialized; }
int VisibleDevices() { return static_cast<int>(Visible().size()); }
int PhysicalDevice(int device) { return Visible()[device]; }
int CurrentDevice() { return contexts.empty() ? -1 : contexts.back(); }
int DeviceError(int device) { return errors[device]; }
void* ContextHandle(int device) { return reinterpret_cast<void*>(kFirstContext + 16 * device); }

void DeviceFault(int device, const std::string& text) {
  Fault("device " + std::to_string(device) + ": " + text);
  errors[device] = CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // namespace fake

#define FAKE_ENTER_DEVICE(device)                              \
  FAKE_ENTER();                                                \
  if (!fake::Initialized()) return CUDA_ERROR_NOT_INITIALIZED; \
  if (!fake::Valid(device)) return CUDA_ERROR_INVALID_DEVICE

CUresult cuInit(unsigned flags) {
  FAKE_ENTER();
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!fake::VisibleDevices()) return CUDA_ERROR_NO_DEVICE;
  fake::initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  FAKE_ENTER();
  *version = static_cast<int>(fake::Setting("driver_version"));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  FAKE_ENTER();
  if (!fake::Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  *count = fake::VisibleDevices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_ENTER_DEVICE(ordinal);
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  FAKE_ENTER_DEVICE(device);
  std::snprintf(name, length, "tfddl test double");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  FAKE_ENTER_DEVICE(device);
  std::memset(uuid->bytes, 0x5a, sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<char>(fake::PhysicalDevice(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  FAKE_ENTER();
  return cuDeviceGetUuid(uuid, device);
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  FAKE_ENTER_DEVICE(device);
  const int written = std::snprintf(id, length, "0000:%02X:00.0", 0x10 + fake::PhysicalDevice(device));
  return written < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  FAKE_ENTER_DEVICE(device);
  switch (attribute) {
    case 16:  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
      *value = 132;
      return CUDA_SUCCESS;
    case 20:  // CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
    case 34:  // CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID
    case 50:  // CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID
    case 76:  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
      *value = 0;
      return CUDA_SUCCESS;
    case 33:  // CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
      *value = 0x10 + fake::PhysicalDevice(device);
      return CUDA_SUCCESS;
    case 75:  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
      *value = 9;
      return CUDA_SUCCESS;
    default:
      fake::Warn("cuDeviceGetAttribute: the double has no attribute " + std::to_string(attribute));
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_ENTER_DEVICE(device);
  ++fake::retained[device];
  *context = fake::ContextHandle(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  FAKE_ENTER_DEVICE(device);
  if (fake::retained[device].fetch_sub(1) > 0) return CUDA_SUCCESS;
  ++fake::retained[device];
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAKE_ENTER();
  if (!fake::Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  const int device = context ? fake::DeviceOfContext(context) : -1;
  if (context && (device < 0 || !fake::retained[device])) return CUDA_ERROR_INVALID_CONTEXT;
  if (fake::contexts.empty()) fake::contexts.push_back(-1);
  fake::contexts.back() = device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKE_ENTER();
  if (!fake::Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = fake::CurrentDevice() < 0 ? nullptr : fake::ContextHandle(fake::CurrentDevice());
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  FAKE_ENTER();
  const int device = fake::DeviceOfContext(context);
  if (device < 0 || !fake::retained[device]) return CUDA_ERROR_INVALID_CONTEXT;
  fake::contexts.push_back(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  FAKE_ENTER();
  if (fake::CurrentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = fake::ContextHandle(fake::CurrentDevice());
  fake::contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_ENTER();
  if (fake::CurrentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *device = fake::CurrentDevice();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_ENTER();
  if (fake::CurrentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  FAKE_ENTER();
  const fake::NamedError* found = fake::FindError(error);
  *name = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  FAKE_ENTER();
  const fake::NamedError* found = fake::FindError(error);
  *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
