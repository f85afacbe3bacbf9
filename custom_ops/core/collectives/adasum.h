// Adasum, the adaptive sum of Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020:
// parallel parts of two vectors count once, orthogonal parts add up.
#pragma once

#include <memory>

#include "core/collectives/collective.h"

namespace tfddl {

// The adaptive sum of the vectors of N ranks, along a tree. P is the largest power of two not above N. First,
// rank r < N - P combines its vector with the vector of rank r + P. Then neighbours among the first P ranks
// combine their vectors: 0 with 1, 2 with 3; then 0-1 with 2-3; and so on. Each tensor of a group is a vector
// of its own.
std::unique_ptr<Collective> MakeAdasum(Lane lane, ScratchPool* pool, const Request& request);

}  // namespace tfddl
