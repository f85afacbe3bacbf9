// The engine's copy of a compiled program's host memory, which lives as long as the request.
#pragma once

#include <cstddef>
#include <vector>

#include "base/request.h"
#include "core/compiled/call.h"

namespace tfddl {

// Whether the results overwrite the inputs.
inline bool InPlace(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBroadcast; }

// The Buffer of input number `input` of `call`.
Buffer BufferOf(const Call& call, size_t input, const void* in, void* out);

// All inputs, then all outputs; one range if the results overwrite the inputs.
class CallMemory {
 public:
  explicit CallMemory(const Call& call);
  ~CallMemory();
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  void CopyIn(const void* const* in);
  void CopyOut(void* const* out) const;

  // For the request.
  std::vector<Buffer> Buffers(const Call& call);

 private:
  std::vector<size_t> in_;  // bytes
  std::vector<size_t> out_;
  size_t out_begin_ = 0;
  size_t total_ = 0;
  std::vector<char> memory_;
};

}  // namespace tfddl
