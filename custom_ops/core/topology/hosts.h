// The hosts of the participants of a collective.
#pragma once

#include <cstddef>
#include <vector>

namespace tfddl {

class Hosts {
 public:
  // `numbers`: for each rank the number of its host (Transport::hosts()).
  Hosts(const std::vector<int>& numbers, int rank);

  // Whether there are several hosts and one has several ranks. The same on all ranks.
  bool worthwhile() const { return hosts() > 1 && ranks_ > hosts(); }
  int ranks() const { return ranks_; }
  int hosts() const { return static_cast<int>(ranks_of_.size()); }
  // The ranks of this host, in ascending order.
  const std::vector<int>& local() const { return of(rank_); }
  // The ranks of the host of `rank`, in ascending order.
  const std::vector<int>& of(int rank) const;
  // The place of `rank` among the ranks of its host.
  int index(int rank) const { return index_[static_cast<size_t>(rank)]; }
  // The ranks of each host. The hosts are in the order of their first ranks.
  const std::vector<std::vector<int>>& all() const { return ranks_of_; }
  // The largest number of ranks of a host.
  int largest() const;
  // The number of slices. The first ranks of each host own one slice each. Equal to the number of ranks on
  // the smallest host, so the same on all ranks.
  int owners() const { return owners_; }
  // The owners of a slice, one on each host, in ascending order.
  std::vector<int> OwnersOf(int slice) const;
  // The owners of this rank's slice. Empty: this rank owns no slice.
  std::vector<int> across() const;

 private:
  int ranks_;
  int rank_;
  int owners_;
  std::vector<std::vector<int>> ranks_of_;
  std::vector<int> host_;   // of each rank
  std::vector<int> index_;  // of each rank
};

}  // namespace tfddl
