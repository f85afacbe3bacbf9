// The common part of the kernels: turns an OpKernelContext into a request, and a status into TensorFlow's.
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
#define TFDDL_TYPES                                                                                  \
  "{half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool, " \
  "complex64, complex128}"
constexpr char kTypeAttr[] = "T: " TFDDL_TYPES;

// The number of the process set (core/process/process.h) whose members run the op.
constexpr char kProcessSetAttr[] = "process_set: int = 0";

// The attributes of an op that reduces (ReadReduction() in attributes.h).
#define TFDDL_REDUCTION_ATTRS            \
  Attr("tensor_name: string")            \
      .Attr(kProcessSetAttr)             \
      .Attr("reduce_op: int")            \
      .Attr("prescale: string = '1.0'")  \
      .Attr("postscale: string = '1.0'") \
      .Attr("context: string = ''")

// A shape function: each output has the shape of its input.
absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* context);

// A shape function: each output has the shape of its input, with an unknown first dimension.
absl::Status UnknownRows(tensorflow::shape_inference::InferenceContext* context);

// For shape functions: *y is `x` with an unknown first dimension.
absl::Status WithUnknownRows(tensorflow::shape_inference::InferenceContext* context,
                             tensorflow::shape_inference::ShapeHandle x,
                             tensorflow::shape_inference::ShapeHandle* y);

absl::Status ToStatus(const Status& status, const std::string& name);

// The status of an allocation by TensorFlow: any error is kResourceExhausted.
Status AllocationStatus(const absl::Status& status);

// The number of elements of a row, even if `x` has no rows.
int64_t RowElements(const tensorflow::Tensor& x);

// Tensors that are kept until no byte of them can be touched.
using Tensors = std::shared_ptr<std::vector<tensorflow::Tensor>>;

class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  CollectiveKernel(tensorflow::OpKernelConstruction* context, Kind kind);

 protected:
  // The current engine of the op's process set. If there is none, reports an error and returns null.
  std::shared_ptr<Engine> RequireEngine(tensorflow::OpKernelContext* context, const DoneCallback& done) const;

  // The request of this op for its first `count` inputs, still without buffers.
  Request MakeRequest(tensorflow::OpKernelContext* context, int count) const;

  // If one of the first `count` inputs is a scalar, reports an error and returns false.
  bool RequireRows(tensorflow::OpKernelContext* context, int count, const DoneCallback& done) const;

  bool on_host() const { return device_ == Device::kHost; }

  // The arena for outputs (shared_output.h); null: TensorFlow allocates them.
  std::shared_ptr<Arena> ArenaFor(const Engine& engine) const { return on_host() ? engine.arena() : nullptr; }

  // For Request::allocate: allocates output `i` like input `i` with `rows` rows, and appends its address to
  // *out.
  static Status AllocateRows(tensorflow::OpKernelContext* context, Arena* arena, const Tensors& keep, int i,
                             int64_t rows, std::vector<void*>* out);

  // Submits a request, which fails if its step is cancelled. `keep`: the tensors whose memory it uses. Call
  // it last: on a GPU, later work on TensorFlow's stream is not taken into account.
  void Submit(std::shared_ptr<Engine> engine, tensorflow::OpKernelContext* context, Request request,
              Tensors keep, DoneCallback done) const;

  Call call_;  // the attributes

 private:
  // The signature of the call on the first `count` inputs.
  std::string Signature(tensorflow::OpKernelContext* context, int count) const;

  Device device_ = Device::kHost;  // of the tensors

  // The last signature and its shapes. Shapes seldom change, and a signature of 1000 tensors takes 200 us.
  mutable std::mutex mutex_;
  mutable std::vector<tensorflow::TensorShape> described_;
  mutable std::string signature_;
};

}  // namespace tfddl
