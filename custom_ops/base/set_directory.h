// The process sets of a job: the number of a set -> its ranks, sorted. Set 0 has all ranks and is not stored.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tfddl {

class SetDirectory {
 public:
  void Add(int set, std::vector<int> ranks) { ranks_[set] = std::move(ranks); }
  void Remove(int set) { ranks_.erase(set); }
  bool Has(int set) const { return set == 0 || ranks_.count(set) != 0; }

  // Whether `rank` is in the set. False for an unknown set.
  bool Includes(int set, int rank) const;

  // "process set 1 [0, 2]"; empty for set 0.
  std::string Name(int set) const;

 private:
  std::map<int, std::vector<int>> ranks_;
};

// "process set 1 [0, 2]"
std::string NameOfSet(int set, const std::vector<int>& ranks);

}  // namespace tfddl
