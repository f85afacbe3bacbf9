// Reads the types and attributes of an op, for the TensorFlow kernels and the XLA kernels.
#pragma once

#include <string>

#include "base/support.h"
#include "core/compiled/call.h"
#include "tensorflow/compat.h"

namespace tfddl {

// The op's T attribute admits these types only.
inline DataType ToDataType(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_HALF:
      return DataType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return DataType::kBFloat16;
    case tensorflow::DT_DOUBLE:
      return DataType::kFloat64;
    case tensorflow::DT_INT8:
      return DataType::kInt8;
    case tensorflow::DT_INT16:
      return DataType::kInt16;
    case tensorflow::DT_INT32:
      return DataType::kInt32;
    case tensorflow::DT_INT64:
      return DataType::kInt64;
    case tensorflow::DT_UINT8:
      return DataType::kUInt8;
    case tensorflow::DT_UINT16:
      return DataType::kUInt16;
    case tensorflow::DT_UINT32:
      return DataType::kUInt32;
    case tensorflow::DT_UINT64:
      return DataType::kUInt64;
    case tensorflow::DT_BOOL:
      return DataType::kBool;
    case tensorflow::DT_COMPLEX64:
      return DataType::kComplex64;
    case tensorflow::DT_COMPLEX128:
      return DataType::kComplex128;
    default:
      return DataType::kFloat32;
  }
}

// Reads the attributes of all collectives: process set, tensor name, type. Some ops have no name or no type.
inline absl::Status ReadCall(tensorflow::OpKernelConstruction* context, Call* call) {
  TF_RETURN_IF_ERROR(context->GetAttr("process_set", &call->process_set));
  if (context->HasAttr("tensor_name")) TF_RETURN_IF_ERROR(context->GetAttr("tensor_name", &call->name));
  if (!context->HasAttr("T")) return absl::OkStatus();
  tensorflow::DataType dtype;
  TF_RETURN_IF_ERROR(context->GetAttr("T", &dtype));
  call->dtype = ToDataType(dtype);
  return absl::OkStatus();
}

// Reads the attributes of an op that reduces, after ReadCall(). Refuses a reduce_op that does not support the
// op's type. The factors are strings: an attribute cannot be a double, and a float would cost a float64
// tensor half of its digits. The ranks compare the strings. `context` has further fields of the signature
// (base/signature.h).
inline absl::Status ReadReduction(tensorflow::OpKernelConstruction* context, Call* call) {
  int reduce_op = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("reduce_op", &reduce_op));
  TF_RETURN_IF_ERROR(context->GetAttr("prescale", &call->prescale));
  TF_RETURN_IF_ERROR(context->GetAttr("postscale", &call->postscale));
  TF_RETURN_IF_ERROR(context->GetAttr("context", &call->context));
  call->op = static_cast<ReduceOp>(reduce_op);
  if (Supports(call->kind, call->op, call->dtype)) return absl::OkStatus();
  return MakeStatus(absl::StatusCode::kInvalidArgument,
                    std::string(NameOf(call->kind)) +
                        " does not support this reduce_op for this dtype: cast the tensor, or use another "
                        "op. Received: reduce_op=" +
                        std::to_string(reduce_op) + ", " + NameOf(call->dtype));
}

// Reads the bucket attributes of an allreduce, after ReadReduction().
inline absl::Status ReadBucket(tensorflow::OpKernelConstruction* context, Call* call) {
  TF_RETURN_IF_ERROR(context->GetAttr("bucket", &call->bucket));
  return context->GetAttr("buckets", &call->buckets);
}

// Reads the attributes of an alltoall. The ranks have to agree on the dtype of `splits`: a number of rows
// that fits int64 on one rank may not fit int32 on another.
inline absl::Status ReadSplits(tensorflow::OpKernelConstruction* context, Call* call, bool* even) {
  tensorflow::DataType type;
  TF_RETURN_IF_ERROR(context->GetAttr("even", even));
  TF_RETURN_IF_ERROR(context->GetAttr("Tsplits", &type));
  call->splits = *even ? "None" : NameOf(ToDataType(type));
  return absl::OkStatus();
}

}  // namespace tfddl
