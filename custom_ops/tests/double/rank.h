// Helpers for the tests of the doubles: ranks as threads, each with a GPU, a stream and a communicator.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/double/control.h"
#include "tests/double/cuda/cuda_abi.h"
#include "tests/double/nccl/nccl_abi.h"

namespace fake {

inline std::string TakeFaults() {
  char text[4096] = "";
  tfddl_fake_take_faults(text, sizeof text);
  return text;
}

inline std::string TakeWarnings() {
  char text[4096] = "";
  tfddl_fake_take_warnings(text, sizeof text);
  return text;
}

// Makes the device's context current on this thread.
inline void UseDevice(int device) {
  CUcontext context = nullptr;
  CHECK(cuInit(0) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

// Polls until the communicator's last operation has ended. Returns its code.
inline int Settle(ncclComm_t comm) {
  int state = ncclInProgress;
  while (state == ncclInProgress) {
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    std::this_thread::yield();
  }
  return state;
}

inline ncclConfig_t NonBlocking() { return {sizeof(ncclConfig_t), kNcclMagic, 22707, 0}; }

// Device memory with values.
template <typename T>
class Array {
 public:
  explicit Array(const std::vector<T>& values) : size_(values.size()) {
    CHECK(cuMemAlloc_v2(&pointer_, size_ * sizeof(T)) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoD_v2(pointer_, values.data(), size_ * sizeof(T)) == CUDA_SUCCESS);
  }
  ~Array() { CHECK(cuMemFree_v2(pointer_) == CUDA_SUCCESS); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* get() const { return reinterpret_cast<T*>(pointer_); }
  CUdeviceptr pointer() const { return pointer_; }
  // The values after all work of the stream.
  std::vector<T> Read(CUstream stream) const {
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    std::vector<T> values(size_);
    CHECK(cuMemcpyDtoH_v2(values.data(), pointer_, size_ * sizeof(T)) == CUDA_SUCCESS);
    return values;
  }

 private:
  size_t size_;
  CUdeviceptr pointer_ = 0;
};

// Blocks a stream until it is opened.
class Gate {
 public:
  void Close(CUstream stream) { CHECK(cuLaunchHostFunc(stream, Pass, this) == CUDA_SUCCESS); }
  void Open() { open_ = true; }

 private:
  static void Pass(void* gate) {
    while (!static_cast<Gate*>(gate)->open_) std::this_thread::yield();
  }
  std::atomic<bool> open_{false};
};

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Rank {
  Rank(const ncclUniqueId& id, int rank, int size, int device) : rank(rank), size(size) {
    UseDevice(device);
    CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1) == CUDA_SUCCESS);
    ncclConfig_t config = NonBlocking();
    CHECK(ncclCommInitRankConfig(&comm, size, id, rank, &config) == ncclInProgress);
    CHECK(Settle(comm) == ncclSuccess);
  }
  ~Rank() {
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  }

  // Checks that a call was accepted and its work is on the stream.
  void Enqueued(int code) const {
    CHECK(code == ncclSuccess || code == ncclInProgress);
    CHECK(Settle(comm) == ncclSuccess);
  }

  const int rank;
  const int size;
  CUstream stream = nullptr;
  ncclComm_t comm = nullptr;
};

// Runs body(number) on one thread for each number.
inline void OnThreads(int threads, const std::function<void(int)>& body) {
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number) running.emplace_back(body, number);
  for (std::thread& thread : running) thread.join();
}

inline void OnRanks(int size, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  OnThreads(size, [&](int number) {
    Rank rank(id, number, size, number);
    body(rank);
  });
}

}  // namespace fake
