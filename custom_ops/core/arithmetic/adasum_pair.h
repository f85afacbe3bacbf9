// The arithmetic of Adasum (core/collectives/adasum.h) for two vectors.
#pragma once

#include "base/types.h"

namespace tfddl {

struct AdasumDots {
  double aa = 0;
  double ab = 0;
  double bb = 0;
};

// The dot products of two vectors, in float64. The order of the additions depends on `count` alone.
AdasumDots AdasumDotsOf(DataType dtype, const void* a, const void* b, int64_t count);

// out = (1 - ab / 2aa) a + (1 - ab / 2bb) b, in float64, rounded once. A zero vector counts as orthogonal to
// the other one. `out` may be `a` or `b`.
void AdasumPair(DataType dtype, const AdasumDots& dots, const void* a, const void* b, void* out,
                int64_t count);

}  // namespace tfddl
