#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace tfddl {

// 0, 1, ..., size - 1
inline std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace tfddl
