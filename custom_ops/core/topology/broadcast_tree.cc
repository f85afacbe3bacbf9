#include "core/topology/broadcast_tree.h"

#include <algorithm>

#include "base/ranks.h"

namespace tfddl {
namespace {

// Adds the neighbours of member `place` in the binomial tree of some ranks, whose first one is the root. The
// parent of place p is p without its lowest set bit; its children differ in a lower bit.
void AddBinomial(const std::vector<int>& ranks, size_t place, BroadcastTree* tree) {
  size_t mask = 1;
  for (; mask < ranks.size() && !(place & mask); mask *= 2) {
  }
  if (place > 0) tree->parent = ranks[place - mask];
  for (mask /= 2; mask > 0; mask /= 2) {
    if (place + mask < ranks.size()) tree->children.push_back(ranks[place + mask]);
  }
}

void AddChain(const std::vector<int>& ranks, size_t place, BroadcastTree* tree) {
  if (place > 0) tree->parent = ranks[place - 1];
  if (place + 1 < ranks.size()) tree->children.push_back(ranks[place + 1]);
}

// Over H hosts, a chain takes H - 2 + pieces times as long as a piece, and a tree pieces * log2(H) times.
bool ChainIsFaster(size_t hosts, size_t pieces) {
  size_t levels = 0;
  while ((size_t{1} << levels) < hosts) ++levels;
  return hosts > 2 && pieces * (levels - 1) >= hosts - 2;
}

// The ranks, with `first` as the first one.
std::vector<int> Beginning(std::vector<int> ranks, int first) {
  std::rotate(ranks.begin(), std::find(ranks.begin(), ranks.end(), first), ranks.end());
  return ranks;
}

size_t PlaceOf(int rank, const std::vector<int>& ranks) {
  return static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

BroadcastTree TreeFor(const Hosts& hosts, int rank, int size, int root, size_t pieces) {
  BroadcastTree tree;
  std::vector<int> near = AllRanks(size), first;
  int leader = root;
  if (hosts.hosts() > 1) {
    near = hosts.of(rank);
    for (const auto& ranks : hosts.all()) first.push_back(&ranks == &hosts.of(root) ? root : ranks[0]);
    first = Beginning(first, root);
    if (&hosts.of(rank) != &hosts.of(root)) leader = near[0];
    if (rank == leader) {
      const auto add = ChainIsFaster(first.size(), pieces) ? AddChain : AddBinomial;
      add(first, PlaceOf(rank, first), &tree);
    }
  }
  const std::vector<int> ranks = Beginning(near, leader);
  const size_t place = PlaceOf(rank, ranks);
  const int parent = tree.parent;
  AddBinomial(ranks, place, &tree);
  if (place == 0) tree.parent = parent;
  return tree;
}

}  // namespace tfddl
