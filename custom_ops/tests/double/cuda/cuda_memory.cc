#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/cuda_abi.h"
#include "tests/double/cuda/device.h"

namespace fake {
namespace {

constexpr unsigned char kPoison = 0xfb;  // a large odd number in integers, a NaN or about -1e36 in floats
constexpr size_t kQuarantine = size_t{256} << 20;

struct Allocation {
  size_t bytes;
  int device;
  bool freed;
};

// Freed memory stays mapped for a while and its addresses are not reused, so that late accesses are found.
struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
  std::deque<uintptr_t> freed;
  size_t freed_bytes = 0;
};

Memory& TheMemory() {
  static auto* memory = new Memory;
  return *memory;
}

// The allocation of an address, or end(). Call it under the lock.
std::map<uintptr_t, Allocation>::iterator Containing(Memory& memory, uintptr_t address) {
  auto next = memory.allocations.upper_bound(address);
  if (next == memory.allocations.begin()) return memory.allocations.end();
  --next;
  return address - next->first < next->second.bytes ? next : memory.allocations.end();
}

void EndQuarantine(Memory& memory) {
  while (memory.freed_bytes > kQuarantine) {
    const auto oldest = memory.allocations.find(memory.freed.front());
    memory.freed.pop_front();
    memory.freed_bytes -= oldest->second.bytes;
    std::free(reinterpret_cast<void*>(oldest->first));
    memory.allocations.erase(oldest);
  }
}

std::string Where(uintptr_t address, size_t bytes) {
  char text[80];
  std::snprintf(text, sizeof text, "%zu bytes at 0x%zx", bytes, static_cast<size_t>(address));
  return text;
}

void* Pointer(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

bool CheckAccess(int device, const void* pointer, size_t bytes, const std::string& user) {
  if (!bytes) return true;
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  std::string wrong;
  {
    Memory& memory = TheMemory();
    std::lock_guard<std::mutex> lock(memory.mutex);
    const auto found = Containing(memory, address);
    if (found == memory.allocations.end())
      wrong = "which is not device memory";
    else if (found->second.freed)
      wrong = "which has been freed";
    else if (address - found->first + bytes > found->second.bytes)
      wrong = "beyond the end of an allocation of " + std::to_string(found->second.bytes) + " bytes";
  }
  if (wrong.empty()) return true;
  DeviceFault(device, user + " uses " + Where(address, bytes) + ", " + wrong);
  return false;
}

int DeviceOf(const void* pointer) {
  Memory& memory = TheMemory();
  std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = Containing(memory, reinterpret_cast<uintptr_t>(pointer));
  return found == memory.allocations.end() || found->second.freed ? -1 : found->second.device;
}

}  // namespace fake

#define FAKE_STREAM(stream, handle)                       \
  const auto stream = fake::FindStream(handle, __func__); \
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;          \
  const int device = stream->device();                    \
  if (const int error = fake::DeviceError(device)) return error

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  FAKE_ENTER();
  const int device = fake::CurrentDevice();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  constexpr size_t kAlignment = 256;
  void* address = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(address, fake::kPoison, bytes);
  *pointer = reinterpret_cast<uintptr_t>(address);
  fake::Memory& memory = fake::TheMemory();
  std::lock_guard<std::mutex> lock(memory.mutex);
  memory.allocations[*pointer] = {bytes, device, false};
  return CUDA_SUCCESS;
}

// The real function waits for the device. This one does not, so that memory that is freed too early is found:
// allocators on top of CUDA, such as TensorFlow's, reuse memory without waiting.
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  FAKE_ENTER();
  if (!pointer) return CUDA_SUCCESS;
  fake::Memory& memory = fake::TheMemory();
  std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = memory.allocations.find(pointer);
  if (found == memory.allocations.end() || found->second.freed) {
    fake::Fault("cuMemFree: the pointer was freed before or never allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->second.freed = true;
  std::memset(fake::Pointer(pointer), fake::kPoison, found->second.bytes);
  memory.freed.push_back(pointer);
  memory.freed_bytes += found->second.bytes;
  fake::EndQuarantine(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  stream->Push([=] {
    if (fake::CheckAccess(device, fake::Pointer(to), bytes, "cuMemcpyDtoDAsync (to)") &&
        fake::CheckAccess(device, fake::Pointer(from), bytes, "cuMemcpyDtoDAsync (from)"))
      std::memmove(fake::Pointer(to), fake::Pointer(from), bytes);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream handle) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  stream->Push([=] {
    if (fake::CheckAccess(device, fake::Pointer(to), bytes, "cuMemcpyHtoDAsync"))
      std::memcpy(fake::Pointer(to), from, bytes);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  stream->Push([=] {
    if (fake::CheckAccess(device, fake::Pointer(from), bytes, "cuMemcpyDtoHAsync"))
      std::memcpy(to, fake::Pointer(from), bytes);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream handle) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  stream->Push([=] {
    if (fake::CheckAccess(device, fake::Pointer(to), count, "cuMemsetD8Async"))
      std::memset(fake::Pointer(to), value, count);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream handle) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  stream->Push([=] {
    auto* words = static_cast<unsigned*>(fake::Pointer(to));
    if (fake::CheckAccess(device, words, count * sizeof value, "cuMemsetD32Async"))
      std::fill_n(words, count, value);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  FAKE_ENTER();
  const int failed = cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr);
  return failed ? failed : cuStreamSynchronize(nullptr);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  FAKE_ENTER();
  const int failed = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
  return failed ? failed : cuStreamSynchronize(nullptr);
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  FAKE_ENTER();
  const int failed = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
  return failed ? failed : cuStreamSynchronize(nullptr);
}

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  FAKE_ENTER();
  *pointer = std::calloc(1, bytes);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void* pointer) {
  FAKE_ENTER();
  std::free(pointer);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, int attribute, CUdeviceptr pointer) {
  FAKE_ENTER();
  const int device = fake::DeviceOf(fake::Pointer(pointer));
  if (device < 0) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case 1:  // CU_POINTER_ATTRIBUTE_CONTEXT
      *static_cast<CUcontext*>(data) = fake::ContextHandle(device);
      return CUDA_SUCCESS;
    case 2:                               // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
      *static_cast<unsigned*>(data) = 2;  // CU_MEMORYTYPE_DEVICE
      return CUDA_SUCCESS;
    case 3:  // CU_POINTER_ATTRIBUTE_DEVICE_POINTER
      *static_cast<CUdeviceptr*>(data) = pointer;
      return CUDA_SUCCESS;
    case 9:  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
      *static_cast<int*>(data) = device;
      return CUDA_SUCCESS;
    default:
      fake::Warn("cuPointerGetAttribute: the double has no attribute " + std::to_string(attribute));
      return CUDA_ERROR_INVALID_VALUE;
  }
}

#undef FAKE_STREAM  // cuda_stream.cc, which may be in the same unit, has another one
