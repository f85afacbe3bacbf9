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
  int size;          // the number of sources
  int divisor;       // Average only
};

// out[i] = postscale * op over r of (prescale * sources[r][i]), in the order of the ranks: the result depends
// neither on the rank that computes it nor on the pieces. `out` may be a source.
//
// - float16 and bfloat16 accumulate in float32 and are rounded once.
// - Integers of up to 32 bits accumulate in a wider type. A result that does not fit wraps.
// - A factor on integers is applied in double, truncated toward zero and clamped to the type's range: the
//   prescale before the reduction, the postscale after it.
// - An Average of integers without a postscale is an exact division, truncated toward zero.
// - Min and Max of floating-point numbers are NaN if any value is NaN, as in NumPy. On bools, Min is
//   the logical and, Max the logical or.
void Reduce(const Reduction& reduction, const void* const* sources, void* out, int64_t count);

// Reduce() in two steps, for sources on several hosts. ReducePartly() writes accumulators, of the type
// AccumulatorType(dtype), to `out`, which must not be a source. The accumulators of several hosts are
// combined by a Reduce() of that type without factors (for an Average: a Sum). FinishReduction() turns
// accumulators into results and overwrites them.
void ReducePartly(const Reduction& reduction, const void* const* sources, void* out, int64_t count);
void FinishReduction(const Reduction& reduction, void* values, void* out, int64_t count);
DataType AccumulatorType(DataType dtype);

// The functions above, compiled for each instruction set of this processor. The last one is the widest, which
// the functions above use. All give the same bits.
struct ReduceLoops {
  decltype(&Reduce) reduce;
  decltype(&ReducePartly) partly;
  decltype(&FinishReduction) finish;
};
std::vector<ReduceLoops> ReduceLoopsHere();

}  // namespace tfddl
