// The data types that each reduction supports.
#pragma once

#include "base/types.h"

namespace tfddl {

// Complex numbers have no order, so Min and Max do not support them; bool supports Min and Max only.
// tfddl/ops/dtypes.py holds the same table, and a test compares the two.
bool Supports(ReduceOp op, DataType dtype);

// Whether a collective of this kind supports `op` for `dtype`.
bool Supports(Kind kind, ReduceOp op, DataType dtype);

}  // namespace tfddl
