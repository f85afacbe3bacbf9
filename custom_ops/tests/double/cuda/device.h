// The devices of the double: contexts, their errors, their memory. What the double of NCCL asks of CUDA's.
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

// A device's error stays until the process ends, as CUDA's illegal address does.
int DeviceError(int device);

// Reports the fault and leaves the device with CUDA_ERROR_ILLEGAL_ADDRESS.
void DeviceFault(int device, const std::string& what);

// Whether all bytes lie in one live allocation; a fault of the device that runs `what` if not. Called when
// the access happens, not when it is enqueued.
bool CheckAccess(int device, const void* pointer, size_t bytes, const std::string& what);

// The device that owns the memory, or -1.
int DeviceOf(const void* pointer);

// Null after a fault: no such stream. The null stream is an ordinary stream of the current device here:
// nothing may rely on its implicit synchronisation.
std::shared_ptr<Stream> FindStream(void* handle, const char* caller);
void* ContextHandle(int device);

}  // namespace fake
