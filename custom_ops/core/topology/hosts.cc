#include "core/topology/hosts.h"

#include <algorithm>
#include <map>

namespace tfddl {

Hosts::Hosts(const std::vector<int>& numbers, int rank)
    : ranks_(static_cast<int>(numbers.size())), rank_(rank), owners_(ranks_) {
  std::map<int, int> places;  // of hosts, by number
  for (int other = 0; other < ranks_; ++other) {
    const int place = static_cast<int>(places.size());
    const auto host =
        static_cast<size_t>(places.emplace(numbers[static_cast<size_t>(other)], place).first->second);
    if (host == ranks_of_.size()) ranks_of_.emplace_back();
    host_.push_back(static_cast<int>(host));
    index_.push_back(static_cast<int>(ranks_of_[host].size()));
    ranks_of_[host].push_back(other);
  }
  for (const auto& ranks : ranks_of_) owners_ = std::min(owners_, static_cast<int>(ranks.size()));
}

const std::vector<int>& Hosts::of(int rank) const {
  return ranks_of_[static_cast<size_t>(host_[static_cast<size_t>(rank)])];
}

int Hosts::largest() const {
  size_t most = 0;
  for (const auto& ranks : ranks_of_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

std::vector<int> Hosts::OwnersOf(int slice) const {
  std::vector<int> owners;
  for (const auto& ranks : ranks_of_) owners.push_back(ranks[static_cast<size_t>(slice)]);
  std::sort(owners.begin(), owners.end());
  return owners;
}

std::vector<int> Hosts::across() const {
  const int slice = ranks_ > 0 ? index(rank_) : 0;
  return slice < owners_ ? OwnersOf(slice) : std::vector<int>();
}

}  // namespace tfddl
