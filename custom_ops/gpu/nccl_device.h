// The GPU of this process: libraries, context, and the one stream for all communication.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "core/collectives/device_plane.h"
#include "gpu/gpu_api.h"
#include "gpu/nccl_order.h"

namespace tfddl {

// Never closed: TensorFlow's kernels may use the context until the process ends.
struct NcclDevice {
  std::unique_ptr<GpuApi> api;
  int ordinal = -1;
  CudaContext context = nullptr;
  CudaStream stream = nullptr;  // of the highest priority
  std::string uuid;
};

// Makes the device's context current on this thread for its lifetime.
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

// An event on a stream, after all work that was on the stream at the time of construction.
class NcclEvent : public DeviceEvent {
 public:
  // Raises: std::runtime_error.
  NcclEvent(std::shared_ptr<const NcclDevice> device, CudaStream stream);
  // A failed event.
  explicit NcclEvent(std::string error) : error_(std::move(error)) {}
  ~NcclEvent() override;

  // The error of a failed event, else empty.
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

// Opens the GPU of this process at the first use. From any thread.
class NcclDevices {
 public:
  // `libraries`: empty means DefaultGpuLibraries() at the time of opening.
  explicit NcclDevices(GpuLibraries libraries) : libraries_(std::move(libraries)) {}

  // Null and the reason in *error if the GPU does not open or another GPU is open already.
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
