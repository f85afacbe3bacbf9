#include "core/compiled/call_memory.h"

#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/collectives/collective.h"

namespace tfddl {
namespace {

std::mutex pool_mutex;
ScratchPool* const pool = new ScratchPool;  // leaked: programs may run until the process ends

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::vector<size_t> Bytes(const Call& call, const std::vector<Shape>& shapes) {
  const auto element = static_cast<int64_t>(SizeOf(call.dtype));
  std::vector<size_t> bytes;
  for (const Shape& shape : shapes) bytes.push_back(static_cast<size_t>(Elements(shape) * element));
  return bytes;
}

// Whether the inputs can be reduced as one tensor, which saves the engine from packing them.
bool ReducesAsOne(const Call& call) {
  const bool elementwise = call.op == ReduceOp::kAverage || call.op == ReduceOp::kSum ||
                           call.op == ReduceOp::kMin || call.op == ReduceOp::kMax ||
                           call.op == ReduceOp::kProduct;
  return call.kind == Kind::kAllreduce && elementwise;
}

}  // namespace

CallMemory::CallMemory(const Call& call)
    : in_(Bytes(call, call.shapes)), out_(Bytes(call, call.OutputShapes())) {
  out_begin_ = InPlace(call.kind) ? 0 : std::accumulate(in_.begin(), in_.end(), size_t{0});
  total_ = out_begin_ + std::accumulate(out_.begin(), out_.end(), size_t{0});
  std::lock_guard<std::mutex> lock(pool_mutex);
  memory_ = pool->Take(total_);
}

CallMemory::~CallMemory() {
  std::lock_guard<std::mutex> lock(pool_mutex);
  pool->Give(std::move(memory_));
}

void CallMemory::CopyIn(const void* const* in) {
  char* to = memory_.data();
  for (size_t i = 0; i < in_.size(); to += in_[i++]) Copy(to, in[i], in_[i]);
}

void CallMemory::CopyOut(void* const* out) const {
  const char* from = memory_.data() + out_begin_;
  for (size_t i = 0; i < out_.size(); from += out_[i++]) Copy(out[i], from, out_[i]);
}

std::vector<Buffer> CallMemory::Buffers(const Call& call) {
  char* in = memory_.data();
  if (ReducesAsOne(call)) return {{in, in, static_cast<int64_t>(total_ / SizeOf(call.dtype))}};
  std::vector<Buffer> buffers;
  char* out = in + out_begin_;
  for (size_t i = 0; i < call.shapes.size(); ++i) {
    buffers.push_back(BufferOf(call, i, in, out));
    in += in_[i];
    out += out_[i];
  }
  return buffers;
}

Buffer BufferOf(const Call& call, size_t input, const void* in, void* out) {
  const Shape& shape = call.shapes[input];
  const bool rows = !InPlace(call.kind);
  return {in, out, Elements(shape), rows ? shape.at(0) : 0, rows ? RowElements(shape) : 0};
}

}  // namespace tfddl
