#include "gpu/nccl_device.h"

#include <stdexcept>
#include <utility>

namespace tfddl {

NcclEvent::NcclEvent(std::shared_ptr<const NcclDevice> device, CudaStream stream)
    : device_(std::move(device)), stream_(stream) {
  const GpuApi& api = *device_->api;
  const WithContext current(*device_);
  api.CheckCuda(api.cuEventCreate(&event_, kCudaEventDisableTiming), "cuEventCreate");
  const int code = api.cuEventRecord(event_, stream_);
  if (code == kCudaSuccess) return;
  api.cuEventDestroy_v2(event_);
  api.CheckCuda(code, "cuEventRecord");
}

NcclEvent::~NcclEvent() {
  if (event_) device_->api->cuEventDestroy_v2(event_);
}

bool NcclEvent::Passed() const {
  const int code = device_->api->cuEventQuery(event_);
  if (code == kCudaNotReady) return false;
  device_->api->CheckCuda(code, "cuEventQuery");
  return true;
}

void NcclEvent::HoldBack(void* stream) const {
  const GpuApi& api = *device_->api;
  const WithContext current(*device_);
  api.CheckCuda(api.cuStreamWaitEvent(static_cast<CudaStream>(stream), event_, 0), "cuStreamWaitEvent");
}

std::shared_ptr<const NcclDevice> NcclDevices::Open(int ordinal, std::string* error) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!device_ && error_.empty()) OpenFirst(ordinal);
  *error = error_;
  if (device_ && device_->ordinal != ordinal) {
    *error =
        "tfddl uses one GPU a process: show each process one by hvd.set_visible_gpu(), right after "
        "hvd.init(). Received: tensors on GPU " +
        std::to_string(device_->ordinal) + " and on GPU " + std::to_string(ordinal);
    return nullptr;
  }
  return device_;
}

void NcclDevices::OpenFirst(int ordinal) {
  auto device = std::make_shared<NcclDevice>();
  device->api = GpuApi::Open(libraries_.nccl.empty() ? DefaultGpuLibraries() : libraries_, &error_);
  if (!device->api) return;
  const GpuApi& api = *device->api;
  try {
    device->ordinal = ordinal;
    api.CheckCuda(api.cuInit(0), "cuInit");
    int handle = 0;
    api.CheckCuda(api.cuDeviceGet(&handle, ordinal), "cuDeviceGet");
    CudaUuid uuid;
    api.CheckCuda(api.cuDeviceGetUuid_v2(&uuid, handle), "cuDeviceGetUuid");
    device->uuid.assign(uuid.bytes, sizeof uuid.bytes);
    api.CheckCuda(api.cuDevicePrimaryCtxRetain(&device->context, handle), "cuDevicePrimaryCtxRetain");
    const WithContext current(*device);
    int lowest = 0, highest = 0;
    api.CheckCuda(api.cuCtxGetStreamPriorityRange(&lowest, &highest), "cuCtxGetStreamPriorityRange");
    api.CheckCuda(api.cuStreamCreateWithPriority(&device->stream, kCudaStreamNonBlocking, highest),
                  "cuStreamCreateWithPriority");
    device_ = std::move(device);
  } catch (const std::runtime_error& failure) {
    error_ = "GPU " + std::to_string(ordinal) + " did not open: " + failure.what();
  }
}

}  // namespace tfddl
