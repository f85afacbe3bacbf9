// The hosts of the participants of a collective.
#pragma once

#include <vector>

namespace tfddl {

class Hosts {
 public:
  // `numbers`: for each rank the number of its host (Transport::hosts()).
  Hosts(const std::vector<int>& numbers, int rank);

  // Whether there are several hosts and one has several ranks. The same on all ranks.
  bool worthwhile() const { return hosts_ > 1 && ranks_ > hosts_; }
  int hosts() const { return hosts_; }
  // The ranks of this host, in ascending order.
  const std::vector<int>& local() const { return local_; }
  // The number of slices. The first ranks of each host own one slice each. Equal to the number of ranks on
  // the smallest host, so the same on all ranks.
  int owners() const { return owners_; }
  // The owners of this rank's slice, one on each host, in ascending order. Empty: this rank owns no slice.
  const std::vector<int>& across() const { return across_; }

 private:
  int ranks_;
  int hosts_;
  int owners_;
  std::vector<int> local_;
  std::vector<int> across_;
};

}  // namespace tfddl
