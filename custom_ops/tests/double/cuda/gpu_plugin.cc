// A TensorFlow plugin that shows the double's GPUs as "GPU" devices, so that the GPU kernels run without a
// GPU. TensorFlow does not pass on the handle of a plugin's stream: kernels get the null stream, which is an
// ordinary stream in the double. So the plugin uses the null stream for all its streams.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/tf_status.h"
#include "tests/double/cuda/cuda_abi.h"

struct SP_Stream_st {};
struct SP_Event_st {
  CUevent event;
};
struct SP_Timer_st {};

namespace {

SP_Stream_st the_stream;

// Makes the device's context current for its lifetime.
class Current {
 public:
  explicit Current(const SP_Device* device) { cuCtxPushCurrent_v2(device->device_handle); }
  ~Current() { cuCtxPopCurrent_v2(nullptr); }
};

void Report(int code, const char* call, TF_Status* status) {
  if (code == CUDA_SUCCESS) return TF_SetStatus(status, TF_OK, "");
  TF_SetStatus(status, TF_INTERNAL, (std::string(call) + ": " + std::to_string(code)).c_str());
}

CUdeviceptr Address(const SP_DeviceMemoryBase* memory) {
  return reinterpret_cast<CUdeviceptr>(memory->opaque);
}

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  const Current current(device);
  CUdeviceptr pointer = 0;
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = cuMemAlloc_v2(&pointer, size) == CUDA_SUCCESS ? reinterpret_cast<void*>(pointer) : nullptr;
  memory->size = size;
}

// Enqueues `work` on the stream.
int Launch(std::function<void()> work) {
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(data));
    (*own)();
  };
  return cuLaunchHostFunc(nullptr, run, new std::function<void()>(std::move(work)));
}

// Frees memory in the order of the stream, as TensorFlow's allocators reuse it. A use on another stream after
// that is found.
void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  const Current current(device);
  if (const CUdeviceptr pointer = Address(memory)) Launch([pointer] { cuMemFree_v2(pointer); });
  memory->opaque = nullptr;
}

// Aligned as TensorFlow wants its tensors.
void* AllocateHost(const SP_Device*, uint64_t size) { return std::aligned_alloc(64, (size + 63) / 64 * 64); }
void DeallocateHost(const SP_Device*, void* memory) { std::free(memory); }

TF_Bool AllocatorStats(const SP_Device*, SP_AllocatorStats*) { return 0; }
TF_Bool MemoryUsage(const SP_Device*, int64_t* free, int64_t* total) {
  *free = *total = int64_t{1} << 32;
  return 1;
}

void CreateStream(const SP_Device*, SP_Stream* stream, TF_Status* status) {
  *stream = &the_stream;
  Report(CUDA_SUCCESS, "", status);
}
void DestroyStream(const SP_Device*, SP_Stream) {}
void DependOnStream(const SP_Device*, SP_Stream, SP_Stream, TF_Status* status) {
  Report(CUDA_SUCCESS, "", status);
}
void StreamStatus(const SP_Device*, SP_Stream, TF_Status* status) { Report(CUDA_SUCCESS, "", status); }

void CreateEvent(const SP_Device* device, SP_Event* event, TF_Status* status) {
  const Current current(device);
  *event = new SP_Event_st;
  Report(cuEventCreate(&(*event)->event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", status);
}
void DestroyEvent(const SP_Device*, SP_Event event) {
  cuEventDestroy_v2(event->event);
  delete event;
}
SE_EventStatus EventStatus(const SP_Device*, SP_Event event) {
  const int code = cuEventQuery(event->event);
  if (code == CUDA_ERROR_NOT_READY) return SE_EVENT_PENDING;
  return code == CUDA_SUCCESS ? SE_EVENT_COMPLETE : SE_EVENT_ERROR;
}
void RecordEvent(const SP_Device* device, SP_Stream, SP_Event event, TF_Status* status) {
  const Current current(device);
  Report(cuEventRecord(event->event, nullptr), "cuEventRecord", status);
}
void WaitForEvent(const SP_Device* device, SP_Stream, SP_Event event, TF_Status* status) {
  const Current current(device);
  Report(cuStreamWaitEvent(nullptr, event->event, 0), "cuStreamWaitEvent", status);
}
void BlockForEvent(const SP_Device*, SP_Event event, TF_Status* status) {
  Report(cuEventSynchronize(event->event), "cuEventSynchronize", status);
}

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  Report(CUDA_SUCCESS, "", status);
}
void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }
void RunTimer(const SP_Device*, SP_Stream, SP_Timer, TF_Status* status) { Report(CUDA_SUCCESS, "", status); }
uint64_t Nanoseconds(SP_Timer) { return 0; }

void ToHost(const SP_Device* device, SP_Stream, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
            TF_Status* status) {
  const Current current(device);
  Report(cuMemcpyDtoHAsync_v2(to, Address(from), size, nullptr), "cuMemcpyDtoHAsync", status);
}
void ToDevice(const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
              TF_Status* status) {
  const Current current(device);
  Report(cuMemcpyHtoDAsync_v2(Address(to), from, size, nullptr), "cuMemcpyHtoDAsync", status);
}
void OnDevice(const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
              uint64_t size, TF_Status* status) {
  const Current current(device);
  Report(cuMemcpyDtoDAsync_v2(Address(to), Address(from), size, nullptr), "cuMemcpyDtoDAsync", status);
}
void ToHostNow(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
               TF_Status* status) {
  const Current current(device);
  Report(cuMemcpyDtoH_v2(to, Address(from), size), "cuMemcpyDtoH", status);
}
void ToDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                 TF_Status* status) {
  const Current current(device);
  Report(cuMemcpyHtoD_v2(Address(to), from, size), "cuMemcpyHtoD", status);
}
void OnDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                 uint64_t size, TF_Status* status) {
  const Current current(device);
  Report(cuMemcpyDtoD_v2(Address(to), Address(from), size), "cuMemcpyDtoD", status);
}

void Block(const SP_Device* device, SP_Stream, TF_Status* status) {
  const Current current(device);
  Report(cuStreamSynchronize(nullptr), "cuStreamSynchronize", status);
}
void BlockForAll(const SP_Device* device, TF_Status* status) {
  const Current current(device);
  Report(cuCtxSynchronize(), "cuCtxSynchronize", status);
}

void Fill(const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to, uint8_t byte, uint64_t size,
          TF_Status* status) {
  const Current current(device);
  Report(cuMemsetD8Async(Address(to), byte, size, nullptr), "cuMemsetD8Async", status);
}
void FillWords(const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to, uint32_t word, uint64_t size,
               TF_Status* status) {
  const Current current(device);
  auto* words = static_cast<uint32_t*>(to->opaque);
  Report(Launch([=] { std::fill_n(words, size / sizeof word, word); }), "cuLaunchHostFunc", status);
}
void Zero(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, uint64_t size,
          TF_Status* status) {
  Fill(device, stream, to, 0, size, status);
}

TF_Bool LaunchCallback(const SP_Device* device, SP_Stream, SE_StatusCallbackFn function, void* argument) {
  const Current current(device);
  return Launch([=] {
           TF_Status* status = TF_NewStatus();
           function(argument, status);
           TF_DeleteStatus(status);
         }) == CUDA_SUCCESS;
}

void Count(const SP_Platform*, int* count, TF_Status* status) {
  Report(CUDA_SUCCESS, "", status);
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(count) != CUDA_SUCCESS) *count = 0;
}
void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status* status) {
  SP_Device* device = params->device;
  device->struct_size = SP_DEVICE_STRUCT_SIZE;
  device->ordinal = params->ordinal;
  device->hardware_name = "tfddl test double";
  device->device_vendor = "tfddl";
  device->pci_bus_id = "";
  Report(cuDevicePrimaryCtxRetain(&device->device_handle, params->ordinal), "cuDevicePrimaryCtxRetain",
         status);
}
void DestroyDevice(const SP_Platform*, SP_Device*) {}

int32_t NumaNode(const SP_Device*) { return -1; }
int64_t Bandwidth(const SP_Device*) { return -1; }
double Gflops(const SP_Device*) { return -1; }
void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status* status) {
  *params->device_fns = {SP_DEVICE_FNS_STRUCT_SIZE, nullptr, NumaNode, Bandwidth, Gflops};
  Report(CUDA_SUCCESS, "", status);
}
void DestroyDeviceFns(const SP_Platform*, SP_DeviceFns*) {}

void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status* status) {
  SP_StreamExecutor& executor = *params->stream_executor;
  executor.struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  executor.allocate = Allocate;
  executor.deallocate = Deallocate;
  executor.host_memory_allocate = AllocateHost;
  executor.host_memory_deallocate = DeallocateHost;
  executor.get_allocator_stats = AllocatorStats;
  executor.device_memory_usage = MemoryUsage;
  executor.create_stream = CreateStream;
  executor.destroy_stream = DestroyStream;
  executor.create_stream_dependency = DependOnStream;
  executor.get_stream_status = StreamStatus;
  executor.create_event = CreateEvent;
  executor.destroy_event = DestroyEvent;
  executor.get_event_status = EventStatus;
  executor.record_event = RecordEvent;
  executor.wait_for_event = WaitForEvent;
  executor.create_timer = CreateTimer;
  executor.destroy_timer = DestroyTimer;
  executor.start_timer = RunTimer;
  executor.stop_timer = RunTimer;
  executor.memcpy_dtoh = ToHost;
  executor.memcpy_htod = ToDevice;
  executor.memcpy_dtod = OnDevice;
  executor.sync_memcpy_dtoh = ToHostNow;
  executor.sync_memcpy_htod = ToDeviceNow;
  executor.sync_memcpy_dtod = OnDeviceNow;
  executor.block_host_for_event = BlockForEvent;
  executor.block_host_until_done = Block;
  executor.synchronize_all_activity = BlockForAll;
  executor.mem_zero = Zero;
  executor.memset = Fill;
  executor.memset32 = FillWords;
  executor.host_callback = LaunchCallback;
  Report(CUDA_SUCCESS, "", status);
}
void DestroyExecutor(const SP_Platform*, SP_StreamExecutor*) {}

void CreateTimerFns(const SP_Platform*, SP_TimerFns* functions, TF_Status* status) {
  *functions = {SP_TIMER_FNS_STRUCT_SIZE, nullptr, Nanoseconds};
  Report(CUDA_SUCCESS, "", status);
}
void DestroyTimerFns(const SP_Platform*, SP_TimerFns*) {}

void DestroyPlatform(SP_Platform*) {}
void DestroyPlatformFns(SP_PlatformFns*) {}

}  // namespace

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  SP_Platform& platform = *params->platform;
  platform.struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform.name = "TFDDL_DOUBLE";
  platform.type = "GPU";
  platform.use_bfc_allocator = 0;  // each tensor has its own allocation, so the double sees when it is freed
  *params->platform_fns = {SP_PLATFORM_FNS_STRUCT_SIZE,
                           nullptr,
                           Count,
                           CreateDevice,
                           DestroyDevice,
                           CreateDeviceFns,
                           DestroyDeviceFns,
                           CreateExecutor,
                           DestroyExecutor,
                           CreateTimerFns,
                           DestroyTimerFns};
  params->destroy_platform = DestroyPlatform;
  params->destroy_platform_fns = DestroyPlatformFns;
  Report(CUDA_SUCCESS, "", status);
}
