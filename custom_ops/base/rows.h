// How the rows of a tensor, which are its first dimension, are divided among ranks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tfddl {

// The rows of a reducescatter's result begin here for `rank`: the first rows % size ranks get one more.
inline int64_t RowsBegin(int64_t rows, int rank, int size) {
  return rows / size * rank + std::min<int64_t>(rank, rows % size);
}

// How many of them `rank` gets.
inline int64_t RowsOf(int64_t rows, int rank, int size) {
  return RowsBegin(rows, rank + 1, size) - RowsBegin(rows, rank, size);
}

}  // namespace tfddl
