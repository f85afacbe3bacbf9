#include "tensorflow/kernel.h"

#include <atomic>
#include <memory>
#include <utility>

#include "tensorflow/core/framework/cancellation.h"

namespace tfddl {

namespace tf = tensorflow;

DataType ToDataType(tf::DataType dtype) {
  switch (dtype) {
    case tf::DT_HALF:
      return DataType::kFloat16;
    case tf::DT_BFLOAT16:
      return DataType::kBFloat16;
    case tf::DT_DOUBLE:
      return DataType::kFloat64;
    case tf::DT_INT8:
      return DataType::kInt8;
    case tf::DT_INT16:
      return DataType::kInt16;
    case tf::DT_INT32:
      return DataType::kInt32;
    case tf::DT_INT64:
      return DataType::kInt64;
    case tf::DT_UINT8:
      return DataType::kUInt8;
    case tf::DT_UINT16:
      return DataType::kUInt16;
    case tf::DT_UINT32:
      return DataType::kUInt32;
    case tf::DT_UINT64:
      return DataType::kUInt64;
    case tf::DT_BOOL:
      return DataType::kBool;
    case tf::DT_COMPLEX64:
      return DataType::kComplex64;
    case tf::DT_COMPLEX128:
      return DataType::kComplex128;
    default:
      return DataType::kFloat32;
  }
}

absl::Status ToStatus(const Status& status, const std::string& name) {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  switch (status.code()) {
    case Code::kOk:
      return absl::OkStatus();
    case Code::kInvalidArgument:
      code = absl::StatusCode::kInvalidArgument;
      break;
    case Code::kFailedPrecondition:
      code = absl::StatusCode::kFailedPrecondition;
      break;
    case Code::kCancelled:
      code = absl::StatusCode::kCancelled;
      break;
    case Code::kResourceExhausted:
      code = absl::StatusCode::kResourceExhausted;
      break;
    case Code::kUnknown:
      break;
  }
  return MakeStatus(code, "tfddl '" + name + "': " + status.message());
}

std::vector<int64_t> ToShape(const tf::TensorShape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.dims(); ++i) dims.push_back(shape.dim_size(i));
  return dims;
}

std::string DescribeRows(const tf::Tensor& x) {
  std::vector<int64_t> shape = ToShape(x.shape());
  shape[0] = -1;
  return DescribeTensor(ToDataType(x.dtype()), shape);
}

int64_t RowElements(const tf::Tensor& x) {
  int64_t elements = 1;
  for (int i = 1; i < x.dims(); ++i) elements *= x.dim_size(i);
  return elements;
}

absl::Status WithOpenRows(tf::shape_inference::InferenceContext* context, tf::shape_inference::ShapeHandle x,
                          tf::shape_inference::ShapeHandle* y) {
  *y = x;
  if (!context->RankKnown(x)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(x, 1, &x));
  return context->ReplaceDim(x, 0, context->UnknownDim(), y);
}

absl::Status OpenRows(tf::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    tf::shape_inference::ShapeHandle y;
    TF_RETURN_IF_ERROR(WithOpenRows(context, context->input(i), &y));
    context->set_output(i, y);
  }
  return absl::OkStatus();
}

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* context) : AsyncOpKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &tensor_name_));
  OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
}

std::shared_ptr<Engine> CollectiveKernel::RequireEngine(tf::OpKernelContext* context,
                                                        const DoneCallback& done) const {
  std::shared_ptr<Engine> engine;
  const Status found = FindEngine(process_set_, &engine);
  if (!found.ok()) {
    context->SetStatus(ToStatus(found, tensor_name_));
    done();
  }
  return engine;
}

Request CollectiveKernel::MakeRequest(tf::OpKernelContext* context, Kind kind) const {
  Request request;
  request.name = tensor_name_;
  request.kind = kind;
  if (context->num_inputs() > 0) request.dtype = ToDataType(context->input(0).dtype());
  // An op that runs eagerly is a step of its own, and all of them share one number.
  request.step = context->step_id();
  return request;
}

bool CollectiveKernel::RequireRows(tf::OpKernelContext* context, const tf::Tensor& x,
                                   const DoneCallback& done) const {
  if (x.dims() > 0) return true;
  context->SetStatus(
      MakeStatus(absl::StatusCode::kInvalidArgument,
                 "'" + tensor_name_ + "' needs tensors of rank 1 or more. Received: a scalar"));
  done();
  return false;
}

Status CollectiveKernel::AllocateRows(tf::OpKernelContext* context, const Tensors& keep, int i, int64_t rows,
                                      std::vector<void*>* out) {
  tf::TensorShape shape = context->input(i).shape();
  shape.set_dim(0, rows);
  tf::Tensor* y = nullptr;
  const absl::Status status = context->allocate_output(i, shape, &y);
  if (!status.ok()) return Status(Code::kResourceExhausted, std::string(status.message()));
  keep->push_back(*y);
  out->push_back(y->data());
  return Status();
}

void CollectiveKernel::Submit(std::shared_ptr<Engine> engine, tf::OpKernelContext* context, Request request,
                              Tensors keep, DoneCallback done) {
  tf::CancellationManager* manager = context->cancellation_manager();
  const auto token = manager ? manager->get_cancellation_token() : tf::CancellationManager::kInvalidToken;
  const std::string key = request.key();
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  const auto cancel = [engine, key, cancelled] {
    *cancelled = true;
    engine->Cancel(key);
  };
  if (manager && !manager->RegisterCallback(token, cancel)) {
    context->SetStatus(
        MakeStatus(absl::StatusCode::kCancelled, "tfddl '" + key + "': its step was cancelled"));
    done();
    return;
  }
  request.cancelled = cancelled;
  request.keep_alive = std::move(keep);
  request.done = [context, manager, token, name = request.name,
                  done = std::move(done)](const Status& status) {
    if (manager) manager->DeregisterCallback(token);
    if (!status.ok()) context->SetStatus(ToStatus(status, name));
    done();
  };
  engine->Submit(std::move(request));
}

}  // namespace tfddl
