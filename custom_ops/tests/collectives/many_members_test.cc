// Small allreduces among many members on hosts of their own: few messages, and the bits of the order of the
// ranks.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/arithmetic/reduce.h"
#include "tests/collectives/cluster.h"

namespace tfddl {
namespace {

std::vector<float> InOrder(const std::vector<std::vector<float>>& values) {
  std::vector<const void*> sources;
  for (const auto& each : values) sources.push_back(each.data());
  std::vector<float> out(values[0].size());
  const Reduction reduction{DataType::kFloat32, ReduceOp::kSum, 1.0, 1.0, static_cast<int>(values.size()), 1};
  Reduce(reduction, sources.data(), out.data(), static_cast<int64_t>(out.size()));
  return out;
}

// Each rank sends `messages` in each allreduce.
void TestMembers(int members, const std::vector<size_t>& counts, size_t messages) {
  std::vector<int> hosts(static_cast<size_t>(members));
  std::iota(hosts.begin(), hosts.end(), 0);
  Cluster cluster(hosts, true);
  for (size_t count : counts) {
    std::vector<std::vector<float>> in, out(hosts.size(), std::vector<float>(count));
    for (size_t rank = 0; rank < hosts.size(); ++rank) in.push_back(RoughValues(rank, count));
    const std::vector<float> expected = InOrder(in);
    for (bool in_place : {false, true}) {
      cluster.Run([&](size_t rank) {
        Request request = Allreduce("x" + std::to_string(count), &in[rank], nullptr);
        if (!in_place) request.buffers[0].out = reinterpret_cast<char*>(out[rank].data());
        return request;
      });
      for (const auto& result : in_place ? in : out) CHECK(result == expected);
    }
  }
  cluster.End();
  CHECK(cluster.MostMessages() == 2 * counts.size() * messages);
}

}  // namespace
}  // namespace tfddl

int main() {
  using namespace tfddl;
  TestMembers(32, {0, 1, 500}, 31);  // one to each
  TestMembers(33, {0, 1, 1000, 2048}, 6);
  TestMembers(40, {1, 2048}, 6);
  if (!kSanitized) TestMembers(64, {1, 1000, 2048}, 6);
  if (!kSanitized) TestMembers(100, {1, 2048}, 7);
  TestMembers(40, {2049}, 2 * 39);  // slices
  std::puts("many members: ok");
  return 0;
}
