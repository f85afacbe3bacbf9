// The arithmetic of a reduction on the CPU.
#pragma once

#include <vector>

#include "base/types.h"

namespace tfddl {

struct Reduction {
  DataType dtype;
  ReduceOp op;
  double prescale;   // multiplies every rank's value before the reduction
  double postscale;  // multiplies the result
  int size;          // number of sources
  int divisor;       // of Average: the number of ranks
};

// out[i] = postscale * op over r of (prescale * sources[r][i]), in the order of the ranks, so that
// the result does not depend on who computes it or in which pieces. `out` may be a source.
//
// float16 and bfloat16 accumulate in float32 and are rounded once. Integers of up to 32 bits accumulate
// in a wider type, and a result that does not fit wraps. A factor on integers is computed
// in double, truncated toward zero and kept within the type's range, once before and once after the
// reduction; an Average without a factor divides exactly, truncating toward zero. Min and Max of
// floating-point numbers are NaN where any rank's value is, as in NumPy; of truth values they are the
// logical and, and or.
void Reduce(const Reduction& reduction, const void* const* sources, void* out, int64_t count);

// The same in two steps, for sources of which some are elsewhere: the first leaves values in which reductions
// accumulate, of AccumulatorType(dtype), apart from the sources. Those of several places are combined by a
// Reduce() of that type without factors, an Average as a Sum. The second makes results of them, and spoils
// them.
void ReducePartly(const Reduction& reduction, const void* const* sources, void* out, int64_t count);
void FinishReduction(const Reduction& reduction, void* values, void* out, int64_t count);
DataType AccumulatorType(DataType dtype);

// What runs them, for each set of instructions that this processor has; the last is the widest, and in use.
// All of them give the same bits.
struct ReduceLoops {
  decltype(&Reduce) reduce;
  decltype(&ReducePartly) partly;
  decltype(&FinishReduction) finish;
};
std::vector<ReduceLoops> ReduceLoopsHere();

}  // namespace tfddl
