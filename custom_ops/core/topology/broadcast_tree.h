// The tree of a broadcast: from whom a rank receives, and to whom it sends.
#pragma once

#include <cstddef>
#include <vector>

#include "core/topology/hosts.h"

namespace tfddl {

struct BroadcastTree {
  int parent = -1;  // -1: the root
  std::vector<int> children;
};

// Data enters each host once. One rank of each host, on the root's host the root, receives it from another
// host and sends it on: between hosts in a binomial tree, or in a chain where `pieces`, which follow each
// other, are so many that its length counts less than that each host sends them once. Inside a host the tree
// is binomial.
//
// `hosts` may be unknown (Hosts::all() is empty): then all ranks are treated as those of one.
BroadcastTree TreeFor(const Hosts& hosts, int rank, int size, int root, size_t pieces);

}  // namespace tfddl
