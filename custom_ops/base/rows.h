// The division of a tensor's rows (its first dimension) among ranks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tfddl {

// The first row of `rank` in a reducescatter. The first rows % size ranks get one row more.
inline int64_t RowsBegin(int64_t rows, int rank, int size) {
  return rows / size * rank + std::min<int64_t>(rank, rows % size);
}

// The number of rows of `rank`.
inline int64_t RowsOf(int64_t rows, int rank, int size) {
  return RowsBegin(rows, rank + 1, size) - RowsBegin(rows, rank, size);
}

}  // namespace tfddl
