// Adasum, the adaptive sum of Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020:
// what two vectors have in common counts once, what is orthogonal adds up.
#pragma once

#include <memory>

#include "core/collectives/collective.h"

namespace tfddl {

// The adaptive sum of all ranks' vectors, formed along a tree. With P the largest power of two not above N,
// rank r < N - P is first paired with rank r + P. What the first P ranks have then is paired with its
// neighbour's: 0 with 1, 2 with 3; then the sums 0-1 with 2-3; and so on. Each member of a group is a vector
// of its own.
std::unique_ptr<Collective> MakeAdasum(Lane lane, ScratchPool* pool, const Request& request);

}  // namespace tfddl
