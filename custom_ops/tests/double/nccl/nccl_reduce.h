// The arithmetic of the double, in rank order. 16-bit floats accumulate in float32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fake {

constexpr int kPreMulSum = 5;  // after the five operators of nccl.h

size_t SizeOfType(int type);
const char* NameOfType(int type);
const char* NameOfOp(int op);

// Each array has n elements. `factor` points to a scalar of the type, for kPreMulSum.
void Reduce(void* out, const char* const* in, int ranks, size_t n, int type, int op, uint64_t factor);

}  // namespace fake
