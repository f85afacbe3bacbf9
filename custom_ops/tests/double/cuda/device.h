// The devices of CUDA's double: contexts, errors, memory. The double of NCCL uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/double/cuda/stream.h"

namespace fake {

bool Initialized();
int VisibleDevices();
int PhysicalDevice(int device);  // the ordinal without CUDA_VISIBLE_DEVICES

// The device of the calling thread's context, or -1.
int CurrentDevice();

// A device keeps its error until the process ends, as with CUDA's illegal address.
int DeviceError(int device);

// Reports the fault and leaves the device with CUDA_ERROR_ILLEGAL_ADDRESS.
void DeviceFault(int device, const std::string& text);

// Whether all bytes lie in one live allocation. If not, reports a fault of the device, caused by `user`. Call
// it when the access happens, not when it is enqueued.
bool CheckAccess(int device, const void* pointer, size_t bytes, const std::string& user);

// The device that owns the memory, or -1.
int DeviceOf(const void* pointer);

// Null after a fault if there is no such stream. The null stream is an ordinary stream of the current device:
// it does not synchronise implicitly.
std::shared_ptr<Stream> FindStream(void* handle, const char* caller);
void* ContextHandle(int device);

}  // namespace fake
