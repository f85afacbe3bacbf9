// The basic types of the engine: data types, reduce operations, collectives, status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tfddl {

enum class DataType : int32_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kComplex64,
  kComplex128,
};

size_t SizeOf(DataType type);
const char* NameOf(DataType type);

// The values are Horovod's, because user code may hold them as plain ints.
enum class ReduceOp : int32_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

const char* NameOf(ReduceOp op);

enum class Kind : int32_t { kAllreduce, kBroadcast, kAllgather, kReducescatter, kAlltoall, kBarrier, kJoin };

const char* NameOf(Kind kind);

// The memory that holds a tensor.
enum class Device : int32_t { kHost, kGpu };

const char* NameOf(Device device);

// The divisor of an Average while some members have joined: the size of the set (kSize), or the number of
// members that have not joined (kActive).
enum class AverageOver : int32_t { kSize, kActive };

const char* NameOf(AverageOver over);

// Each code maps to one class of tf.errors (tensorflow/kernel.cc).
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument,     // this rank's call is wrong
  kFailedPrecondition,  // the calls of the ranks differ, or tfddl is not initialised
  kCancelled,           // another request of the same step failed
  kUnknown,             // tfddl shut down or failed while this request waited (as in Horovod)
  kResourceExhausted,
};

class Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace tfddl
