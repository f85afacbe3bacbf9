#include "tensorflow/kernel.h"

#include <atomic>
#include <memory>
#include <utility>

#include "core/compiled/run_call.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/gpu.h"
#include "tensorflow/shared_output.h"

namespace tfddl {

namespace tf = tensorflow;

namespace {

Shape ToShape(const tf::TensorShape& x) {
  Shape shape;
  for (int i = 0; i < x.dims(); ++i) shape.push_back(x.dim_size(i));
  return shape;
}

}  // namespace

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

int64_t RowElements(const tf::Tensor& x) { return RowElements(ToShape(x.shape())); }

Status AllocationStatus(const absl::Status& status) {
  return status.ok() ? Status() : Status(Code::kResourceExhausted, std::string(status.message()));
}

absl::Status SameShapes(tf::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

absl::Status WithUnknownRows(tf::shape_inference::InferenceContext* context,
                             tf::shape_inference::ShapeHandle x, tf::shape_inference::ShapeHandle* y) {
  *y = x;
  if (!context->RankKnown(x)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(x, 1, &x));
  return context->ReplaceDim(x, 0, context->UnknownDim(), y);
}

absl::Status UnknownRows(tf::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    tf::shape_inference::ShapeHandle y;
    TF_RETURN_IF_ERROR(WithUnknownRows(context, context->input(i), &y));
    context->set_output(i, y);
  }
  return absl::OkStatus();
}

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* context, Kind kind) : AsyncOpKernel(context) {
  call_.kind = kind;
  OP_REQUIRES_OK(context, ReadCall(context, &call_));
  // Barrier and join consist of votes alone, so no stream has to wait for them.
  const bool moves_data = kind != Kind::kBarrier && kind != Kind::kJoin;
  if (moves_data && context->device_type() == tf::DeviceType(tf::DEVICE_GPU)) device_ = Device::kGpu;
}

std::shared_ptr<Engine> CollectiveKernel::RequireEngine(tf::OpKernelContext* context,
                                                        const DoneCallback& done) const {
  std::shared_ptr<Engine> engine;
  const Status found = FindEngine(call_.process_set, &engine);
  if (!found.ok()) {
    context->SetStatus(ToStatus(found, call_.name));
    done();
  }
  return engine;
}

Request CollectiveKernel::MakeRequest(tf::OpKernelContext* context, int count) const {
  Request request = ToRequest(call_);
  request.signature = Signature(context, count);
  // All eager ops share one step number.
  request.step = context->step_id();
  return request;
}

std::string CollectiveKernel::Signature(tf::OpKernelContext* context, int count) const {
  std::lock_guard<std::mutex> lock(mutex_);
  bool known = !signature_.empty() && described_.size() == static_cast<size_t>(count);
  for (int i = 0; known && i < count; ++i) {
    known = context->input(i).shape() == described_[static_cast<size_t>(i)];
  }
  if (known) return signature_;
  described_.clear();
  std::vector<Shape> shapes;
  for (int i = 0; i < count; ++i) {
    described_.push_back(context->input(i).shape());
    shapes.push_back(ToShape(described_.back()));
  }
  return signature_ = call_.Signature(shapes);
}

bool CollectiveKernel::RequireRows(tf::OpKernelContext* context, int count, const DoneCallback& done) const {
  int i = 0;
  while (i < count && context->input(i).dims() > 0) ++i;
  if (i == count) return true;
  context->SetStatus(
      MakeStatus(absl::StatusCode::kInvalidArgument, "'" + call_.name +
                                                         "' needs tensors with at least one dimension: make "
                                                         "one with tf.reshape(x, [1]). Received: a scalar"));
  done();
  return false;
}

Status CollectiveKernel::AllocateRows(tf::OpKernelContext* context, Arena* arena, const Tensors& keep, int i,
                                      int64_t rows, std::vector<void*>* out) {
  tf::TensorShape shape = context->input(i).shape();
  shape.set_dim(0, rows);
  tf::Tensor* y = nullptr;
  const Status status = AllocationStatus(AllocateOutput(context, arena, i, shape, &y));
  if (!status.ok()) return status;
  keep->push_back(*y);
  out->push_back(y->data());
  return Status();
}

void CollectiveKernel::Submit(std::shared_ptr<Engine> engine, tf::OpKernelContext* context, Request request,
                              Tensors keep, DoneCallback done) const {
  request.device = device_;
  if (device_ == Device::kGpu) AgreeAlone(&request);
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
        MakeStatus(absl::StatusCode::kCancelled,
                   "tfddl '" + key + "': its step was cancelled; see the error that ended the step"));
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
  if (device_ == Device::kGpu) {
    const GpuStream gpu = GpuStreamOf(context);
    request.ready = engine->Record(gpu.ordinal, gpu.stream);
  }
  engine->Submit(std::move(request));
}

}  // namespace tfddl
