// Who shares a host with whom among those that take part in a collective.
#pragma once

#include <vector>

namespace tfddl {

class Hosts {
 public:
  // `numbers`: of each rank that of its host, as Transport::hosts().
  Hosts(const std::vector<int>& numbers, int rank);

  // Whether there are several, of which one has several ranks. The same on all ranks, as is owners().
  bool worthwhile() const { return hosts_ > 1 && ranks_ > hosts_; }
  int hosts() const { return hosts_; }
  // The ranks of this host, in ascending order.
  const std::vector<int>& local() const { return local_; }
  // The first of them on each host own slices: as many as the host with the fewest ranks has.
  int owners() const { return owners_; }
  // Those who own the same slice as this rank, one on each host, in ascending order; empty: it owns none.
  const std::vector<int>& across() const { return across_; }

 private:
  int ranks_;
  int hosts_;
  int owners_;
  std::vector<int> local_;
  std::vector<int> across_;
};

}  // namespace tfddl
