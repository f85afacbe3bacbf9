// The vocabulary of the engine: data types, operations and the status of a request.
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

// The numbers are Horovod's, which user code may hold as plain ints.
enum class ReduceOp : int32_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

const char* NameOf(ReduceOp op);

enum class Kind : int32_t { kAllreduce, kBroadcast, kAllgather, kReducescatter, kAlltoall, kBarrier, kJoin };

const char* NameOf(Kind kind);

// Where a tensor lies.
enum class Device : int32_t { kHost, kGpu };

const char* NameOf(Device device);

// What an Average divides by while some members have joined: all of the set, or those that have not joined.
enum class AverageOver : int32_t { kSize, kActive };

const char* NameOf(AverageOver over);

// Codes map one to one to tf.errors (tensorflow/kernel.cc).
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument,     // this rank's call is wrong by itself
  kFailedPrecondition,  // the ranks' calls do not fit together, or tfddl is not initialised
  kCancelled,           // another request of the same step failed
  kUnknown,             // shut down or failed while this request waited (Horovod's code for it)
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
