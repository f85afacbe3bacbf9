#include "core/topology/by_hosts.h"

#include <algorithm>

#include "core/topology/two_steps.h"

namespace tfddl {
namespace {

constexpr size_t kSmallBytes = size_t{64} << 10;

// The bytes that `here` of the members send to the other ones in an allreduce of `bytes` bytes by messages.
size_t Leaving(size_t bytes, int here, int members) {
  const auto pairs = static_cast<size_t>(here) * static_cast<size_t>(members - here);
  return IsSmall(bytes, members) ? pairs * bytes : 2 * pairs * bytes / static_cast<size_t>(members);
}

// A host with r of N ranks has r / N of the result, and exchanges the rest: `across` bytes stand for it once,
// or `bytes` for each of its ranks.
bool ExchangeByHosts(const Hosts& hosts, size_t bytes, size_t across) {
  const auto here = static_cast<size_t>(hosts.largest());
  const auto ranks = static_cast<size_t>(hosts.ranks());
  return here * bytes * (ranks - here) / ranks > across * (ranks - here) / ranks + kHostStepsBytes;
}

}  // namespace

bool IsSmall(size_t bytes, int members) {
  return bytes * static_cast<size_t>(std::max(members - 1, 1)) <= kSmallBytes;
}

bool ReduceByHosts(const Reduction& reduction, const Hosts& hosts, size_t count) {
  if (!hosts.worthwhile()) return false;
  const auto owners = static_cast<size_t>(hosts.owners());
  const size_t slice = (count + owners - 1) / owners * SizeOf(InTwoSteps(reduction, hosts).across.dtype);
  const size_t by_hosts = owners * Leaving(slice, 1, hosts.hosts());
  const size_t flat = Leaving(count * SizeOf(reduction.dtype), hosts.largest(), hosts.ranks());
  return flat > by_hosts + kHostStepsBytes;
}

bool ScatterByHosts(const Reduction& reduction, const Hosts& hosts, size_t count) {
  if (!hosts.worthwhile()) return false;
  const size_t across = count * SizeOf(InTwoSteps(reduction, hosts).across.dtype);
  return ExchangeByHosts(hosts, count * SizeOf(reduction.dtype), across);
}

bool GatherByHosts(const Hosts& hosts, size_t bytes) {
  return hosts.worthwhile() && ExchangeByHosts(hosts, bytes, bytes);
}

}  // namespace tfddl
