// What the kernels share: from an OpKernelContext to an engine's request and back.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/compiled/call.h"
#include "core/process/process.h"
#include "tensorflow/attributes.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfddl {

// The types that an op takes (DataType in base/types.h).
constexpr char kTypeAttr[] =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool, "
    "complex64, complex128}";

// The number of the process set (core/process/process.h) whose members run the op.
constexpr char kProcessSetAttr[] = "process_set: int = 0";

// For shape functions: *y is `x` with an open first dimension.
absl::Status WithOpenRows(tensorflow::shape_inference::InferenceContext* context,
                          tensorflow::shape_inference::ShapeHandle x,
                          tensorflow::shape_inference::ShapeHandle* y);

// The shape function of an op each of whose outputs is like its input with an open first dimension.
absl::Status OpenRows(tensorflow::shape_inference::InferenceContext* context);

absl::Status ToStatus(const Status& status, const std::string& name);
// The number of elements of one row, also where there is none.
int64_t RowElements(const tensorflow::Tensor& x);

// Tensors held until no byte of them can be touched any more.
using Tensors = std::shared_ptr<std::vector<tensorflow::Tensor>>;

class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  CollectiveKernel(tensorflow::OpKernelConstruction* context, Kind kind);

 protected:
  // The engine of the op's process set now; null after having reported why there is none.
  std::shared_ptr<Engine> RequireEngine(tensorflow::OpKernelContext* context, const DoneCallback& done) const;

  // The request of this op's call on its first `count` inputs, less what concerns memory.
  Request MakeRequest(tensorflow::OpKernelContext* context, int count) const;

  // False after having reported that one of the first `count` inputs is a scalar, which has no first
  // dimension.
  bool RequireRows(tensorflow::OpKernelContext* context, int count, const DoneCallback& done) const;

  bool on_host() const { return device_ == Device::kHost; }

  // Where outputs should lie, so that peers reach them (shared_output.h); null: in TensorFlow's own memory.
  std::shared_ptr<Arena> ArenaFor(const Engine& engine) const { return on_host() ? engine.arena() : nullptr; }

  // For Request::allocate: makes output `i` of input `i` with `rows` rows, and stores its memory in *out.
  static Status AllocateRows(tensorflow::OpKernelContext* context, Arena* arena, const Tensors& keep, int i,
                             int64_t rows, std::vector<void*>* out);

  // Submits, so that the request fails when its step is cancelled. `keep` are the tensors whose memory
  // the request uses. Call it last: on a GPU that memory is free for use from now on.
  void Submit(std::shared_ptr<Engine> engine, tensorflow::OpKernelContext* context, Request request,
              Tensors keep, DoneCallback done) const;

  Call call_;  // the attributes

 private:
  // Of the call on the first `count` inputs.
  std::string Signature(tensorflow::OpKernelContext* context, int count) const;

  Device device_ = Device::kHost;  // where the tensors lie

  // The last signature and its shapes, which seldom change: to describe a thousand tensors takes 200 us.
  mutable std::mutex mutex_;
  mutable std::vector<tensorflow::TensorShape> described_;
  mutable std::string signature_;
};

}  // namespace tfddl
