#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/cuda_abi.h"
#include "tests/double/cuda/device.h"
#include "tests/double/cuda/handles.h"

namespace fake {
namespace {

Handles<Stream>& Streams() {
  static auto* streams = new Handles<Stream>(0x0a000000);
  return *streams;
}

Handles<Event>& Events() {
  static auto* events = new Handles<Event>(0x0e000000);
  return *events;
}

std::shared_ptr<Stream> NullStream(int device) {
  static auto* mutex = new std::mutex;
  static auto* streams = new std::array<std::shared_ptr<Stream>, 64>;
  std::lock_guard<std::mutex> lock(*mutex);
  std::shared_ptr<Stream>& stream = (*streams)[device];
  if (!stream) stream = Stream::Start(device, 0);
  return stream;
}

// All open streams, for cuCtxSynchronize.
std::mutex open_mutex;
std::vector<std::weak_ptr<Stream>>& OpenStreams() {
  static auto* open = new std::vector<std::weak_ptr<Stream>>;
  return *open;
}

std::shared_ptr<Event> FindEvent(CUevent handle, const char* caller) {
  std::shared_ptr<Event> event = Events().Find(handle);
  if (!event) Fault(std::string(caller) + ": no such event; it was destroyed or never created");
  return event;
}

}  // namespace

std::shared_ptr<Stream> FindStream(void* handle, const char* caller) {
  // 1 and 2 are CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
  if (reinterpret_cast<uintptr_t>(handle) <= 2 && CurrentDevice() >= 0) return NullStream(CurrentDevice());
  std::shared_ptr<Stream> stream = Streams().Find(handle);
  if (!stream) Fault(std::string(caller) + ": no such stream; it was destroyed or never created");
  return stream;
}

}  // namespace fake

#define FAKE_STREAM(stream, handle)                       \
  const auto stream = fake::FindStream(handle, __func__); \
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;          \
  if (const int error = fake::DeviceError(stream->device())) return error

#define FAKE_EVENT(event, handle)                       \
  const auto event = fake::FindEvent(handle, __func__); \
  if (!event) return CUDA_ERROR_INVALID_HANDLE;         \
  if (const int error = fake::DeviceError(event->device)) return error

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  FAKE_ENTER();
  const int device = fake::CurrentDevice();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) return CUDA_ERROR_INVALID_VALUE;
  const auto started = fake::Stream::Start(device, std::clamp(priority, -5, 0));
  *stream = fake::Streams().Add(started);
  std::lock_guard<std::mutex> lock(fake::open_mutex);
  fake::OpenStreams().push_back(started);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  FAKE_ENTER();
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  FAKE_ENTER();
  const auto stream = fake::Streams().Remove(handle);
  if (!stream) {
    fake::Fault("cuStreamDestroy: no such stream; it was destroyed before or never created");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  stream->Close();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  *context = fake::ContextHandle(stream->device());
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  *priority = stream->priority();
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  return stream->Idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  stream->Synchronize();
  return fake::DeviceError(stream->device());
}

CUresult cuCtxSynchronize() {
  FAKE_ENTER();
  const int device = fake::CurrentDevice();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  std::vector<std::shared_ptr<fake::Stream>> streams{fake::NullStream(device)};
  {
    std::lock_guard<std::mutex> lock(fake::open_mutex);
    for (const auto& weak : fake::OpenStreams())
      if (auto stream = weak.lock(); stream && stream->device() == device) streams.push_back(stream);
  }
  for (const auto& stream : streams) stream->Synchronize();
  return fake::DeviceError(device);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent event_handle, unsigned flags) {
  FAKE_ENTER();
  FAKE_STREAM(stream, stream_handle);
  FAKE_EVENT(event, event_handle);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  // Waits for the last record before this call, if there is one.
  if (const auto fence = event->Last()) stream->Push([fence] { fence->Wait(); });
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void*), void* data) {
  FAKE_ENTER();
  FAKE_STREAM(stream, handle);
  stream->Push([=] { function(data); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  FAKE_ENTER();
  if (fake::CurrentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  auto created = std::make_shared<fake::Event>();
  created->device = fake::CurrentDevice();
  created->timed = !(flags & CU_EVENT_DISABLE_TIMING);
  *event = fake::Events().Add(created);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event_handle, CUstream stream_handle) {
  FAKE_ENTER();
  FAKE_EVENT(event, event_handle);
  FAKE_STREAM(stream, stream_handle);
  if (event->device != stream->device()) {
    fake::Fault("cuEventRecord: the event is of device " + std::to_string(event->device) +
                ", the stream of device " + std::to_string(stream->device()));
    return CUDA_ERROR_INVALID_HANDLE;
  }
  std::lock_guard<std::mutex> lock(event->mutex);
  event->fence = stream->PushFence();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
  FAKE_ENTER();
  FAKE_EVENT(event, handle);
  const auto fence = event->Last();
  return !fence || fence->Done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  FAKE_ENTER();
  FAKE_EVENT(event, handle);
  if (const auto fence = event->Last()) fence->Wait();
  return fake::DeviceError(event->device);
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  FAKE_ENTER();
  FAKE_EVENT(start, start_handle);
  FAKE_EVENT(end, end_handle);
  const auto first = start->Last();
  const auto second = end->Last();
  if (!start->timed || !end->timed || !first || !second) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->Done() || !second->Done()) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(second->When() - first->When()).count();
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  FAKE_ENTER();
  const auto event = fake::Events().Remove(handle);
  if (!event) {
    fake::Fault("cuEventDestroy: no such event; it was destroyed before or never created");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto fence = event->Last();
  if (fence && !fence->Done()) fake::Warn("cuEventDestroy: the event's record has not completed");
  return CUDA_SUCCESS;
}
