// The arithmetic of a reduction on the CPU.
#pragma once

#include "core/types.h"

namespace tfddl {

struct Reduction {
  DataType dtype;
  ReduceOp op;
  double prescale;   // multiplies every rank's value before the sum
  double postscale;  // multiplies the sum
  int size;          // number of ranks: the divisor of Average
};

// out[i] = postscale * sum over r of (prescale * sources[r][i]), summed in the order of the ranks, so
// that the result does not depend on who computes it or in which pieces. `out` may be a source.
//
// float16 and bfloat16 accumulate in float32 and are rounded once. Integers wrap; a factor on
// integers is computed in double and truncated toward zero, once before and once after the sum (as
// Horovod does), and an Average without a factor divides exactly, truncating toward zero.
void Reduce(const Reduction& reduction, const void* const* sources, void* out, int64_t count);

}  // namespace tfddl
