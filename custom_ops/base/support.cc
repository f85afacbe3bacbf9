#include "base/support.h"

namespace tfddl {

bool Supports(ReduceOp op, DataType dtype) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return dtype != DataType::kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return dtype != DataType::kComplex64 && dtype != DataType::kComplex128;
    case ReduceOp::kAdasum:
      return dtype == DataType::kFloat16 || dtype == DataType::kBFloat16 || dtype == DataType::kFloat32 ||
             dtype == DataType::kFloat64;
  }
  return false;
}

bool Supports(Kind kind, ReduceOp op, DataType dtype) {
  const bool scattered = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  return (kind != Kind::kReducescatter || scattered) && Supports(op, dtype);
}

}  // namespace tfddl
