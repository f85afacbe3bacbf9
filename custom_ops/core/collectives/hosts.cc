#include "core/collectives/hosts.h"

#include <algorithm>
#include <map>

namespace tfddl {

Hosts::Hosts(const std::vector<int>& numbers, int rank)
    : ranks_(static_cast<int>(numbers.size())), owners_(ranks_) {
  std::map<int, std::vector<int>> ranks_of;
  for (int other = 0; other < ranks_; ++other) ranks_of[numbers[static_cast<size_t>(other)]].push_back(other);
  hosts_ = static_cast<int>(ranks_of.size());
  if (numbers.empty()) return;
  for (const auto& [number, ranks] : ranks_of) owners_ = std::min(owners_, static_cast<int>(ranks.size()));
  local_ = ranks_of[numbers[static_cast<size_t>(rank)]];
  const auto index = std::find(local_.begin(), local_.end(), rank) - local_.begin();
  if (index >= owners_) return;
  for (const auto& [number, ranks] : ranks_of) across_.push_back(ranks[static_cast<size_t>(index)]);
  std::sort(across_.begin(), across_.end());
}

}  // namespace tfddl
