// The double of libcuda: devices, streams, events, memory, and faults.
#include <cstring>

#include "tests/double/rank.h"

namespace fake {
namespace {

CUstream NewStream() {
  CUstream stream = nullptr;
  CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -5) == CUDA_SUCCESS);
  return stream;
}

CUevent NewEvent(unsigned flags = CU_EVENT_DISABLE_TIMING) {
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, flags) == CUDA_SUCCESS);
  return event;
}

void TestBeforeInit() {
  int count = 0;
  CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
}

void TestDevices() {
  UseDevice(1);
  int count = 0;
  CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 8);
  CUuuid first, second;
  CHECK(cuDeviceGetUuid_v2(&first, 0) == CUDA_SUCCESS && cuDeviceGetUuid_v2(&second, 1) == CUDA_SUCCESS);
  CHECK(std::memcmp(&first, &second, sizeof first));
  char bus[16];
  CHECK(cuDeviceGetPCIBusId(bus, sizeof bus, 1) == CUDA_SUCCESS && !std::strcmp(bus, "0000:11:00.0"));
  CHECK(cuDeviceGetPCIBusId(bus, 4, 1) == CUDA_ERROR_INVALID_VALUE);
  CUdevice device = -1;
  CHECK(cuDeviceGet(&device, 8) == CUDA_ERROR_INVALID_DEVICE);
  CUcontext pushed = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&pushed, 2) == CUDA_SUCCESS && cuCtxPushCurrent_v2(pushed) == CUDA_SUCCESS);
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS && device == 2);
  CUcontext popped = nullptr;
  CHECK(cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS && popped == pushed);
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS && device == 1);
  CHECK(cuDevicePrimaryCtxRelease_v2(2) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRelease_v2(2) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxSetCurrent(pushed) == CUDA_ERROR_INVALID_CONTEXT);
  const char* text = nullptr;
  CHECK(cuGetErrorName(700, &text) == CUDA_SUCCESS && !std::strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
  CHECK(cuGetErrorString(12345, &text) == CUDA_ERROR_INVALID_VALUE && !text);
}

// A stream runs its work in order and asynchronously.
void TestStreamsAreAsynchronous() {
  UseDevice(0);
  const CUstream stream = NewStream();
  Array<int> x({1, 2}), y({0, 0});
  Gate gate;
  gate.Close(stream);
  CHECK(cuMemcpyDtoDAsync_v2(y.pointer(), x.pointer(), 8, stream) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(x.pointer(), 0, 8, stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  CHECK(y.get()[0] == 0);
  gate.Open();
  CHECK((y.Read(stream) == std::vector<int>{1, 2}) && (x.Read(stream) == std::vector<int>{0, 0}));
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

void TestEvents() {
  UseDevice(0);
  const CUstream producer = NewStream(), consumer = NewStream();
  const CUevent event = NewEvent();
  Array<int> x({1}), y({0});
  // An event without a record is complete.
  CHECK(cuEventQuery(event) == CUDA_SUCCESS && cuStreamWaitEvent(consumer, event, 0) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(consumer) == CUDA_SUCCESS);

  Gate gate;
  gate.Close(producer);
  CHECK(cuMemsetD8Async(x.pointer(), 7, 4, producer) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, producer) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(consumer, event, 0) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoDAsync_v2(y.pointer(), x.pointer(), 4, consumer) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY && cuStreamQuery(consumer) == CUDA_ERROR_NOT_READY);
  // The next record re-arms the event; the wait above belongs to the record before.
  Gate second;
  second.Close(producer);
  CHECK(cuEventRecord(event, producer) == CUDA_SUCCESS);
  gate.Open();
  CHECK(y.Read(consumer)[0] == 0x07070707);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(TakeWarnings().empty());
  CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  CHECK(Has(TakeWarnings(), "has not completed"));
  second.Open();
  CHECK(cuStreamSynchronize(producer) == CUDA_SUCCESS);
}

void TestElapsedTime() {
  UseDevice(0);
  const CUstream stream = NewStream();
  const CUevent start = NewEvent(0), end = NewEvent(0), untimed = NewEvent();
  float milliseconds = -1;
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventRecord(start, stream) == CUDA_SUCCESS);
  tfddl_fake_set("stream_delay_us", 3000);
  CHECK(cuEventRecord(end, stream) == CUDA_SUCCESS && cuEventRecord(untimed, stream) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(end) == CUDA_SUCCESS);
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_SUCCESS && milliseconds >= 0);
  CHECK(cuEventElapsedTime(&milliseconds, start, untimed) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  tfddl_fake_set("stream_delay_us", 0);
}

// Each case uses another device, because an illegal access makes a device unusable.
void TestMemoryFaults() {
  UseDevice(3);
  const CUstream stream = NewStream();
  CUdeviceptr gone = 0, kept = 0;
  CHECK(cuMemAlloc_v2(&gone, 8) == CUDA_SUCCESS && cuMemAlloc_v2(&kept, 8) == CUDA_SUCCESS);
  Gate gate;
  gate.Close(stream);
  // The memory is valid when the work is enqueued, but freed when it runs.
  CHECK(cuMemcpyDtoDAsync_v2(kept, gone, 8, stream) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(gone) == CUDA_SUCCESS);
  CHECK(TakeFaults().empty());
  gate.Open();
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(Has(TakeFaults(), "device 3: cuMemcpyDtoDAsync (from) uses 8 bytes at"));
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);

  UseDevice(4);
  CHECK(cuMemsetD8Async(kept, 0, 9, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(Has(TakeFaults(), "beyond the end of an allocation of 8 bytes"));

  UseDevice(5);
  int on_host = 0;
  CHECK(cuMemsetD8Async(reinterpret_cast<uintptr_t>(&on_host), 1, 4, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(Has(TakeFaults(), "which is not device memory") && on_host == 0);

  CHECK(cuMemFree_v2(gone) == CUDA_ERROR_INVALID_VALUE);
  CHECK(Has(TakeFaults(), "freed before"));
}

void TestPointers() {
  UseDevice(2);
  Array<int> x({1});
  int device = -1;
  CHECK(cuPointerGetAttribute(&device, 9, x.pointer()) == CUDA_SUCCESS && device == 2);
  CHECK(cuPointerGetAttribute(&device, 9, reinterpret_cast<uintptr_t>(&device)) == CUDA_ERROR_INVALID_VALUE);
}

void TestHandles() {
  UseDevice(0);
  const CUstream stream = NewStream();
  const CUevent event = NewEvent();
  CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(Has(TakeFaults(), "cuEventRecord: no such stream"));
  CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS && cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(Has(TakeFaults(), "cuEventQuery: no such event"));
  const CUevent here = NewEvent();
  UseDevice(1);
  const CUstream there = NewStream();
  CHECK(cuEventRecord(here, there) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(Has(TakeFaults(), "the event is of device 0, the stream of device 1"));
}

void TestControls() {
  UseDevice(0);
  tfddl_fake_reset();
  tfddl_fake_fail_call("cuStreamQuery", CUDA_ERROR_OUT_OF_MEMORY, 2);
  CHECK(cuStreamQuery(nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuStreamQuery(nullptr) == CUDA_SUCCESS);
  CHECK(tfddl_fake_calls("cuStreamQuery") == 3 && tfddl_fake_calls("cuMemAlloc_v2") == 0);
}

}  // namespace
}  // namespace fake

int main() {
  fake::TestBeforeInit();
  fake::TestDevices();
  fake::TestStreamsAreAsynchronous();
  fake::TestEvents();
  fake::TestElapsedTime();
  fake::TestMemoryFaults();
  fake::TestPointers();
  fake::TestHandles();
  fake::TestControls();
  CHECK(fake::TakeFaults().empty());
}
