// The GPU of this process: its libraries, its context and the one stream on which all communication runs.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "core/collectives/device_plane.h"
#include "gpu/gpu_api.h"
#include "gpu/nccl_order.h"

namespace tfddl {

// Opened once, never closed: kernels of TensorFlow may use the context until the process ends.
struct NcclDevice {
  std::unique_ptr<GpuApi> api;
  int ordinal = -1;
  CudaContext context = nullptr;
  CudaStream stream = nullptr;  // of the highest priority
  CudaMemory word = 0;          // four bytes for a barrier
  std::string uuid;
};

// The device's context is current on this thread while it lives.
class WithContext {
 public:
  explicit WithContext(const NcclDevice& device) : api_(*device.api) {
    api_.CheckCuda(api_.cuCtxPushCurrent_v2(device.context), "cuCtxPushCurrent");
  }
  ~WithContext() {
    CudaContext context;
    api_.cuCtxPopCurrent_v2(&context);
  }

 private:
  const GpuApi& api_;
};

// The end of the work that a stream has at the time of construction.
class NcclEvent : public DeviceEvent {
 public:
  // Raises: std::runtime_error.
  NcclEvent(std::shared_ptr<const NcclDevice> device, CudaStream stream);
  // One that could not be made.
  explicit NcclEvent(std::string error) : error_(std::move(error)) {}
  ~NcclEvent() override;

  // Of the other constructor; empty: it is a real one.
  const std::string& error() const { return error_; }
  const std::shared_ptr<const NcclDevice>& device() const { return device_; }
  CudaStream stream() const { return stream_; }
  // Raises: std::runtime_error.
  bool Passed() const;
  void HoldBack(void* stream) const override;

 private:
  std::string error_;
  std::shared_ptr<const NcclDevice> device_;
  CudaStream stream_ = nullptr;
  CudaEvent event_ = nullptr;
};

// Opens the device at the first request for it. From any thread.
class NcclDevices {
 public:
  // `libraries`: empty for DefaultGpuLibraries() at that time.
  explicit NcclDevices(GpuLibraries libraries) : libraries_(std::move(libraries)) {}

  // Null, and why in *error, when it does not open, or another one is open already.
  std::shared_ptr<const NcclDevice> Open(int ordinal, std::string* error);

  NcclOrder& order() { return order_; }

 private:
  void OpenFirst(int ordinal);

  GpuLibraries libraries_;
  std::mutex mutex_;
  std::shared_ptr<NcclDevice> device_;
  std::string error_;
  NcclOrder order_;
};

}  // namespace tfddl
