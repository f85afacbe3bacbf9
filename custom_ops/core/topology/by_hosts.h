// Whether a collective over several hosts goes by hosts: in steps on each host and between the hosts.
#pragma once

#include <cstddef>

#include "core/arithmetic/reduce.h"
#include "core/topology/hosts.h"

namespace tfddl {

// A collective by hosts has two steps on the host more than a flat one, from each rank to each other rank. A
// link of 10 Gbit/s carries this much in the time of the two steps, at 6.5 us for each. `tfddl bench chain
// -np 2 --sizes 1K` measures 5.5 us.
constexpr size_t kHostStepsBytes = size_t{16} << 10;

// Whether each of the members sends all its `bytes` to each other one in an allreduce by messages: then a
// rank receives at most 64 KB. More go in two rounds of slices.
bool IsSmall(size_t bytes, int members);

// Whether the host with most ranks sends kHostStepsBytes less in an allreduce of `count` elements by hosts
// than in a flat one. The same on all ranks, since all know all hosts.
bool ReduceByHosts(const Reduction& reduction, const Hosts& hosts, size_t count);

// Whether that host sends kHostStepsBytes less in a reducescatter by hosts, of `count` elements in the input
// of a rank.
bool ScatterByHosts(const Reduction& reduction, const Hosts& hosts, size_t count);

// Whether that host receives kHostStepsBytes less in an allgather by hosts, of `bytes` bytes in the output of
// a rank.
bool GatherByHosts(const Hosts& hosts, size_t bytes);

}  // namespace tfddl
