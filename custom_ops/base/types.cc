#include "base/types.h"

namespace tfddl {

namespace {

struct TypeFacts {
  const char* name;
  size_t size;
};

TypeFacts FactsOf(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return {"float16", 2};
    case DataType::kBFloat16:
      return {"bfloat16", 2};
    case DataType::kFloat32:
      return {"float32", 4};
    case DataType::kFloat64:
      return {"float64", 8};
    case DataType::kInt8:
      return {"int8", 1};
    case DataType::kInt16:
      return {"int16", 2};
    case DataType::kInt32:
      return {"int32", 4};
    case DataType::kInt64:
      return {"int64", 8};
    case DataType::kUInt8:
      return {"uint8", 1};
    case DataType::kUInt16:
      return {"uint16", 2};
    case DataType::kUInt32:
      return {"uint32", 4};
    case DataType::kUInt64:
      return {"uint64", 8};
    case DataType::kBool:
      return {"bool", 1};
    case DataType::kComplex64:
      return {"complex64", 8};
    case DataType::kComplex128:
      return {"complex128", 16};
  }
  return {"unknown", 0};
}

}  // namespace

size_t SizeOf(DataType type) { return FactsOf(type).size; }

const char* NameOf(DataType type) { return FactsOf(type).name; }

const char* NameOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "Average";
    case ReduceOp::kSum:
      return "Sum";
    case ReduceOp::kAdasum:
      return "Adasum";
    case ReduceOp::kMin:
      return "Min";
    case ReduceOp::kMax:
      return "Max";
    case ReduceOp::kProduct:
      return "Product";
  }
  return "unknown";
}

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce:
      return "allreduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllgather:
      return "allgather";
    case Kind::kReducescatter:
      return "reducescatter";
    case Kind::kAlltoall:
      return "alltoall";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kJoin:
      return "join";
  }
  return "unknown";
}

const char* NameOf(Device device) { return device == Device::kGpu ? "on a GPU" : "on the CPU"; }

const char* NameOf(AverageOver over) { return over == AverageOver::kActive ? "active" : "size"; }

}  // namespace tfddl
