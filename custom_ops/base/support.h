// What a reduction has a meaning for.
#pragma once

#include "base/types.h"

namespace tfddl {

// Whether `op` has a meaning for `dtype`: complex numbers have no order, and truth values have nothing
// else. tfddl/ops/support_table.py says the same, and a test compares the two.
bool Supports(ReduceOp op, DataType dtype);

// The same, for a collective of this kind.
bool Supports(Kind kind, ReduceOp op, DataType dtype);

}  // namespace tfddl
