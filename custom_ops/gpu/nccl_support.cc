#include "gpu/nccl_support.h"

#include <cfloat>
#include <cmath>
#include <cstdio>

#include "gpu/gpu_api.h"

namespace tfddl {
namespace {

constexpr int kNoType = -1;

bool IsReal(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBFloat16 || dtype == DataType::kFloat32 ||
         dtype == DataType::kFloat64;
}

// NCCL multiplies in the dtype of the tensor, so the factor has to be a normal number of that dtype (or 0).
bool Represents(DataType dtype, double factor) {
  const double size = std::fabs(factor);
  if (size == 0) return true;
  if (dtype == DataType::kFloat16) return size >= 0x1p-14 && size <= 65504;
  if (dtype == DataType::kFloat64) return std::isfinite(size);
  return size >= FLT_MIN && size <= FLT_MAX;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

int NcclTypeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return kNcclFloat16;
    case DataType::kBFloat16:
      return kNcclBfloat16;
    case DataType::kFloat32:
      return kNcclFloat32;
    case DataType::kFloat64:
      return kNcclFloat64;
    case DataType::kInt8:
      return kNcclInt8;
    case DataType::kInt32:
      return kNcclInt32;
    case DataType::kInt64:
      return kNcclInt64;
    case DataType::kUInt8:
      return kNcclUint8;
    case DataType::kUInt32:
      return kNcclUint32;
    case DataType::kUInt64:
      return kNcclUint64;
    default:
      return kNoType;
  }
}

bool NcclReduces(ReduceOp op, DataType dtype) {
  switch (op) {
    case ReduceOp::kAdasum:
      return false;
    case ReduceOp::kAverage:  // the sum of integers could wrap before the division
      return IsReal(dtype);
    default:
      return NcclTypeOf(dtype) != kNoType;
  }
}

bool NcclAverages(const Request& request, const Participants& participants) {
  return request.op == ReduceOp::kAverage && request.prescale * request.postscale == 1 &&
         participants.divisor == static_cast<int>(participants.ranks.size());
}

double NcclFactor(const Request& request, const Participants& participants) {
  const double factor = request.prescale * request.postscale;
  if (request.op != ReduceOp::kAverage || NcclAverages(request, participants)) return factor;
  return factor / participants.divisor;
}

std::string NcclObjection(const Request& request, const Participants& participants) {
  if (request.kind != Kind::kAllreduce && request.kind != Kind::kReducescatter) return "";
  std::string lacks;
  const double factor = NcclFactor(request, participants);
  if (!NcclReduces(request.op, request.dtype)) {
    lacks = std::string("op=") + NameOf(request.op) + " of " + NameOf(request.dtype);
  } else if (request.prescale == 1 && request.postscale == 1) {
    return "";
  } else if (request.op != ReduceOp::kSum && request.op != ReduceOp::kAverage) {
    lacks = std::string("factors with op=") + NameOf(request.op);
  } else if (!IsReal(request.dtype)) {
    lacks = std::string("factors for ") + NameOf(request.dtype);
  } else if (!Represents(request.dtype, factor)) {
    lacks = "a factor of " + Number(factor) + " for " + NameOf(request.dtype) + ", which cannot hold it";
  } else {
    return "";
  }
  return "'" + request.name + "' cannot run on GPUs, where there is no " + lacks +
         ". Run it on the CPU: with tf.device('CPU'): ...";
}

}  // namespace tfddl
