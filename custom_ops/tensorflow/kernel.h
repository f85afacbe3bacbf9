// What the kernels share: from an OpKernelContext to an engine's request and back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/process.h"
#include "core/signature.h"
#include "tensorflow/compat.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfddl {

// The types that an op takes (DataType in core/types.h).
constexpr char kTypeAttr[] =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool, "
    "complex64, complex128}";

// The number of the process set (core/process.h) whose members run the op.
constexpr char kProcessSetAttr[] = "process_set: int = 0";

// For shape functions: *y is `x` with an open first dimension.
absl::Status WithOpenRows(tensorflow::shape_inference::InferenceContext* context,
                          tensorflow::shape_inference::ShapeHandle x,
                          tensorflow::shape_inference::ShapeHandle* y);

// The shape function of an op each of whose outputs is like its input with an open first dimension.
absl::Status OpenRows(tensorflow::shape_inference::InferenceContext* context);

// Raises nothing: the op's T attribute admits these types only.
DataType ToDataType(tensorflow::DataType dtype);
absl::Status ToStatus(const Status& status, const std::string& name);
std::vector<int64_t> ToShape(const tensorflow::TensorShape& shape);

// For a signature: `x`, whose first dimension may differ by rank.
std::string DescribeRows(const tensorflow::Tensor& x);

// The number of elements of one row, also where there is none.
int64_t RowElements(const tensorflow::Tensor& x);

// Tensors held until no byte of them can be touched any more.
using Tensors = std::shared_ptr<std::vector<tensorflow::Tensor>>;

class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* context);

 protected:
  // The engine of the op's process set now; null after having reported why there is none.
  std::shared_ptr<Engine> RequireEngine(tensorflow::OpKernelContext* context, const DoneCallback& done) const;

  // A request with this op's name, step and, where it has an input, type.
  Request MakeRequest(tensorflow::OpKernelContext* context, Kind kind) const;

  // False after having reported that `x`, a scalar, has no first dimension.
  bool RequireRows(tensorflow::OpKernelContext* context, const tensorflow::Tensor& x,
                   const DoneCallback& done) const;

  // For Request::allocate: makes output `i` of input `i` with `rows` rows, and stores its memory in *out.
  static Status AllocateRows(tensorflow::OpKernelContext* context, const Tensors& keep, int i, int64_t rows,
                             std::vector<void*>* out);

  // Submits, so that the request fails when its step is cancelled. `keep` are the tensors whose memory
  // the request uses.
  static void Submit(std::shared_ptr<Engine> engine, tensorflow::OpKernelContext* context, Request request,
                     Tensors keep, DoneCallback done);

  const std::string& tensor_name() const { return tensor_name_; }

 private:
  std::string tensor_name_;
  int process_set_ = 0;
};

}  // namespace tfddl
