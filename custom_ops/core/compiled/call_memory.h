// Memory of ours that stands in for a compiled program's in host memory, for as long as a request lives.
#pragma once

#include <cstddef>
#include <vector>

#include "base/request.h"
#include "core/compiled/call.h"

namespace tfddl {

// Whether the results lie where the inputs do.
inline bool InPlace(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBroadcast; }

// One member of the request of `call`, in the memory of its input and of its output.
Buffer BufferOf(const Call& call, size_t input, const void* in, void* out);

// All inputs, then all outputs; one range where both are the same.
class CallMemory {
 public:
  explicit CallMemory(const Call& call);
  ~CallMemory();
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  void CopyIn(const void* const* in);
  void CopyOut(void* const* out) const;

  // Of the request.
  std::vector<Buffer> Buffers(const Call& call);

 private:
  std::vector<size_t> in_;  // bytes
  std::vector<size_t> out_;
  size_t out_begin_ = 0;
  size_t total_ = 0;
  std::vector<char> memory_;
};

}  // namespace tfddl
