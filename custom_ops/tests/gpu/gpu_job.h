// A job whose ranks have a GPU each. tfddl's loader opens the doubles of CUDA and NCCL.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/arithmetic/half.h"
#include "gpu/nccl.h"
#include "tests/double/rank.h"
#include "tests/engine/job.h"

namespace tfddl {

inline GpuLibraries Doubles() {
  return {TFDDL_FAKE_DIR "/libtfddl_fake_cuda.so", TFDDL_FAKE_DIR "/libtfddl_fake_nccl.so"};
}

struct GpuJob {
  // `ordinals`: the GPU of each rank; empty: GPU r for rank r. `planes`: of another job in the same
  // processes.
  explicit GpuJob(int size, std::vector<int> ordinals = {}, EngineOptions options = {},
                  std::vector<std::shared_ptr<DevicePlane>> others = {}, WatchdogOptions watch = {})
      : gpus(std::move(ordinals)), planes(std::move(others)) {
    for (int rank = 0; rank < size; ++rank) {
      if (static_cast<int>(gpus.size()) == rank) gpus.push_back(rank);
      if (static_cast<int>(planes.size()) == rank) planes.push_back(MakeNcclPlane(Doubles()));
      Use(static_cast<size_t>(rank));
      streams.emplace_back();
      CHECK(cuStreamCreateWithPriority(&streams.back(), CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    }
    Job::device_planes = planes;
    job = std::make_unique<Job>(size, 3, std::move(options), watch);
    Job::device_planes.clear();
  }

  size_t size() const { return planes.size(); }
  void Use(size_t rank) const { fake::UseDevice(gpus[rank]); }

  // Submits as a kernel does: the ready event is recorded last.
  void Submit(size_t rank, Request request) {
    request.device = Device::kGpu;
    request.ready = planes[rank]->Record(gpus[rank], streams[rank]);
    job->engines[rank]->Submit(std::move(request));
  }

  void End() {
    job->End();
    CHECK(fake::TakeFaults().empty());
  }

  std::vector<int> gpus;
  std::vector<std::shared_ptr<DevicePlane>> planes;
  std::vector<CUstream> streams;
  std::unique_ptr<Job> job;
};

template <typename T>
T Element(double value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return ToFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double NumberOf(T element) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return ToFloat(element);
  } else {
    return static_cast<double>(element);
  }
}

// Element `i` of the input of `rank`; small enough for products in 8 bits.
inline double Brought(size_t rank, size_t i) { return static_cast<double>(1 + (i + 3 * rank) % 4); }

template <typename T>
std::vector<T> Bring(size_t rank, size_t count, size_t first = 0) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Element<T>(Brought(rank, first + i));
  return values;
}

// A tensor on a GPU. A tensor without elements has no memory.
template <typename T>
class GpuTensor {
 public:
  explicit GpuTensor(const std::vector<T>& values) {
    if (!values.empty()) array_ = std::make_unique<fake::Array<T>>(values);
  }
  T* get() const { return array_ ? array_->get() : nullptr; }
  std::vector<T> Read(CUstream stream) const { return array_ ? array_->Read(stream) : std::vector<T>(); }

 private:
  std::unique_ptr<fake::Array<T>> array_;
};

inline Request GpuRequest(const std::string& name, Kind kind, DataType dtype,
                          std::function<void(const Status&)> done) {
  Request request;
  request.name = name;
  request.kind = kind;
  request.dtype = dtype;
  request.signature = Signature(kind).Add("dtype", NameOf(dtype)).text();
  request.done = std::move(done);
  return request;
}

}  // namespace tfddl
