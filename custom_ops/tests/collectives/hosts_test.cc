// Broadcast, allgather and reducescatter over several hosts: results, and the bytes between hosts.
#include "core/topology/hosts.h"

#include <cstdio>
#include <cstring>
#include <set>

#include "core/arithmetic/half.h"
#include "core/arithmetic/reduce.h"
#include "core/topology/broadcast_tree.h"
#include "core/topology/by_hosts.h"
#include "tests/collectives/cluster.h"
#include "tests/collectives/row_job.h"
#include "tests/engine/join_job.h"

namespace tfddl {
namespace {

// Layouts with one rank on each host, too.
std::vector<std::vector<int>> MoreLayouts() {
  std::vector<std::vector<int>> layouts = Layouts();
  layouts.push_back({0, 1, 2, 3});
  if (!kSanitized) layouts.push_back({0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7});
  return layouts;
}

void TestHosts() {
  const Hosts uneven({5, 2, 5, 2, 5}, 3);
  CHECK(uneven.worthwhile() && uneven.ranks() == 5 && uneven.hosts() == 2 && uneven.owners() == 2 &&
        uneven.largest() == 3);
  CHECK((uneven.local() == std::vector<int>{1, 3}) && (uneven.across() == std::vector<int>{2, 3}));
  CHECK((uneven.of(4) == std::vector<int>{0, 2, 4}) && uneven.index(4) == 2);
  CHECK(Hosts({5, 2, 5, 2, 5}, 4).across().empty());
  CHECK(!Hosts({}, 0).worthwhile() && !Hosts({0, 0}, 1).worthwhile() && !Hosts({0, 1, 2}, 1).worthwhile());
}

Reduction Among(int size, DataType dtype = DataType::kFloat32, ReduceOp op = ReduceOp::kSum) {
  return {dtype, op, 1.0, 1.0, size, size};
}

// Collectives go by hosts from the size on where the host with most ranks saves kHostStepsBytes.
void TestDecision() {
  const Hosts even({0, 0, 1, 1}, 1), uneven({5, 2, 5, 2, 5}, 3);
  CHECK(!ReduceByHosts(Among(4), even, 1365) && ReduceByHosts(Among(4), even, 1366));    // 3 of 4 messages
  CHECK(!ScatterByHosts(Among(4), even, 8192) && ScatterByHosts(Among(4), even, 8193));  // half of the bytes
  CHECK(!GatherByHosts(even, 32768) && GatherByHosts(even, 32772));
  CHECK(!ReduceByHosts(Among(5), uneven, 818) && ReduceByHosts(Among(5), uneven, 820));  // 5 of 6 messages
  CHECK(!GatherByHosts(uneven, 20480) && GatherByHosts(uneven, 20485));
  // Four bytes stand for each between the hosts.
  CHECK(!ReduceByHosts(Among(4, DataType::kInt8, ReduceOp::kAverage), even, 1 << 20));
  CHECK(!ScatterByHosts(Among(4, DataType::kInt8, ReduceOp::kAverage), even, 1 << 20));
  // Among eight hosts of two ranks slices are small first: there they cost more than slices of all ranks.
  std::vector<int> numbers;
  for (int rank = 0; rank < 16; ++rank) numbers.push_back(rank / 2);
  const Hosts eight(numbers, 0);
  CHECK(ReduceByHosts(Among(16), eight, 300) && !ReduceByHosts(Among(16), eight, 4500));
  CHECK(ReduceByHosts(Among(16), eight, 5000) && ReduceByHosts(Among(16), eight, 1 << 20));
  for (const auto& alone : std::vector<std::vector<int>>{{}, {0}, {0, 0}, {0, 1, 2}}) {
    const Hosts one(alone, 0);
    CHECK(!ReduceByHosts(Among(one.ranks()), one, 1 << 30) && !GatherByHosts(one, 1 << 30));
    CHECK(!ScatterByHosts(Among(one.ranks()), one, 1 << 30));
  }
}

// The tree reaches each rank once, and enters each host once. In a chain each host sends once.
void TestTree(const std::vector<int>& numbers, int root, size_t pieces) {
  const int size = static_cast<int>(numbers.size());
  std::set<int> reached{root};
  std::vector<int> entered(numbers.size()), left(numbers.size());
  for (int rank = 0; rank < size; ++rank) {
    const BroadcastTree tree = TreeFor(Hosts(numbers, rank), rank, size, root, pieces);
    CHECK((tree.parent < 0) == (rank == root));
    for (int child : tree.children) {
      CHECK(reached.insert(child).second);
      CHECK(TreeFor(Hosts(numbers, child), child, size, root, pieces).parent == rank);
      const auto from = static_cast<size_t>(numbers[static_cast<size_t>(rank)]);
      const auto to = static_cast<size_t>(numbers[static_cast<size_t>(child)]);
      if (from == to) continue;
      ++entered[to];
      ++left[from];
    }
  }
  CHECK(static_cast<int>(reached.size()) == size);
  for (size_t host = 0; host < numbers.size(); ++host) {
    CHECK(entered[host] <= 1);
    CHECK(pieces < 10 || left[host] <= 1);
  }
}

void TestBroadcast(const std::vector<int>& hosts, size_t root) {
  constexpr size_t kCount = kSanitized ? 200000 : 800000;  // 4 or 13 pieces
  Cluster cluster(hosts, true);
  std::vector<std::vector<float>> values;
  for (size_t rank = 0; rank < hosts.size(); ++rank) values.push_back(RoughValues(rank, kCount));
  const std::vector<float> expected = values[root];
  cluster.Run([&](size_t rank) {
    Request request = Allreduce("x", &values[rank], nullptr);
    request.kind = Kind::kBroadcast;
    request.root = static_cast<int>(root);
    return request;
  });
  for (const auto& result : values) CHECK(result == expected);
  constexpr size_t kBytes = kCount * sizeof(float);
  CHECK(cluster.Sent() < kBytes * static_cast<size_t>(Hosts(hosts, 0).hosts() - 1) * 21 / 20);
  for (int host : hosts) CHECK(cluster.SentBy(host) < kBytes * 21 / 20);
  cluster.End();
}

// Rank r brings `rows[r]` rows of each of two tensors. Some outputs lie in an arena.
void TestAllgather(const std::vector<int>& hosts, const std::vector<int64_t>& rows) {
  const std::vector<int64_t> row = {40, 1};
  Cluster cluster(hosts, true);
  const size_t ranks = hosts.size();
  std::vector<std::vector<std::vector<float>>> in(ranks), out(ranks);
  std::vector<std::vector<Memory>> memories(ranks);
  std::vector<size_t> brought(ranks), expected_bytes(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < row.size(); ++i) {
      in[rank].push_back(RoughValues(rank + 10 * i, static_cast<size_t>(rows[rank] * row[i])));
      brought[static_cast<size_t>(hosts[rank])] += in[rank][i].size() * sizeof(float);
    }
  }
  cluster.Run([&](size_t rank) {
    Request request = Rows(Kind::kAllgather, in[rank], row, nullptr);
    request.allocate = [&, rank](const std::vector<int64_t>& all, std::vector<void*>* results) {
      for (size_t i = 0; i < row.size(); ++i) {
        int64_t total = 0;
        for (size_t other = 0; other < ranks; ++other) total += all[i * ranks + other];
        const bool outside = rank % 3 == 2 || !cluster.engines[rank]->arena();
        const Home home = outside ? Home::kElsewhere : Home::kArena;
        const auto bytes = static_cast<size_t>(total * row[i]) * sizeof(float);
        memories[rank].emplace_back(cluster.engines[rank].get(), home, bytes);
        results->push_back(memories[rank].back().data());
      }
      return Status();
    };
    return request;
  });
  for (size_t i = 0; i < row.size(); ++i) {
    std::vector<float> expected;
    for (const auto& members : in) expected.insert(expected.end(), members[i].begin(), members[i].end());
    for (auto& found : memories) CHECK(Equal(found[i].data(), expected));
  }
  const auto others = static_cast<size_t>(Hosts(hosts, 0).hosts() - 1);
  for (int host : hosts) {
    const size_t least = brought[static_cast<size_t>(host)] * others;
    CHECK(cluster.SentBy(host) <= least + least / 20 + 20000);
  }
  memories.clear();
  cluster.End();
}

// Each host sends what it has not to keep, whatever its number of ranks.
template <typename T>
void TestReducescatter(const std::vector<int>& hosts, Reduction reduction, const std::vector<int64_t>& rows,
                       T (*value)(size_t rank, size_t i)) {
  constexpr int64_t kRow = 25;
  Cluster cluster(hosts, true);
  const size_t ranks = hosts.size();
  const int size = static_cast<int>(ranks);
  reduction.size = reduction.divisor = size;
  std::vector<std::vector<std::vector<T>>> in(ranks), out(ranks);
  std::vector<size_t> kept(ranks);
  size_t bytes = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < rows.size(); ++i) {
      in[rank].emplace_back();
      for (size_t k = 0; k < static_cast<size_t>(rows[i] * kRow); ++k)
        in[rank][i].push_back(value(rank, k + i));
      out[rank].emplace_back(static_cast<size_t>(RowsOf(rows[i], static_cast<int>(rank), size) * kRow));
      kept[static_cast<size_t>(hosts[rank])] += out[rank][i].size() * sizeof(T);
      bytes += out[rank][i].size() * sizeof(T);
    }
  }
  cluster.Run([&](size_t rank) {
    Request request;
    request.name = request.signature = NameOf(request.kind = Kind::kReducescatter);
    request.dtype = reduction.dtype;
    request.op = reduction.op;
    request.prescale = reduction.prescale;
    request.postscale = reduction.postscale;
    for (size_t i = 0; i < rows.size(); ++i) {
      request.buffers.push_back({in[rank][i].data(), out[rank][i].data(), rows[i] * kRow, rows[i], kRow});
    }
    return request;
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<const void*> sources;
    for (const auto& members : in) sources.push_back(members[i].data());
    std::vector<T> expected(in[0][i].size());
    Reduce(reduction, sources.data(), expected.data(), static_cast<int64_t>(expected.size()));
    size_t at = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (const T& each : out[rank][i]) CHECK(std::memcmp(&each, &expected[at++], sizeof(T)) == 0);
    }
  }
  if (!ScatterByHosts(reduction, Hosts(hosts, 0), bytes / sizeof(T))) return cluster.End();
  for (int host : hosts) {
    const size_t least = bytes - kept[static_cast<size_t>(host)];
    CHECK(cluster.SentBy(host) <= least + least / 20);
  }
  cluster.End();
}

float Whole(size_t rank, size_t i) { return static_cast<float>((i * 7 + rank * 1009) % 2039); }
Float16 Small(size_t rank, size_t i) { return ToFloat16(static_cast<float>((i + rank) % 16)); }
int32_t Large(size_t rank, size_t i) { return static_cast<int32_t>(0x7fffff00u + i * 7 + rank); }

void TestReducescatters(const std::vector<int>& hosts) {
  const Reduction sum{DataType::kFloat32, ReduceOp::kSum, 1.0, 1.0, 0, 0};
  TestReducescatter(hosts, sum, {60011, 0, 1, 3001}, Whole);
  if (kSanitized && hosts != Layouts().front()) return;
  TestReducescatter(hosts, sum, {3}, Whole);
  TestReducescatter(hosts, sum, {60011}, Whole);
  TestReducescatter(hosts, {DataType::kFloat32, ReduceOp::kAverage, 0.5, 4.0, 0, 0}, {30011, 17}, Whole);
  TestReducescatter(hosts, {DataType::kFloat16, ReduceOp::kSum, 1.0, 1.0, 0, 0}, {60011}, Small);
  TestReducescatter(hosts, {DataType::kFloat16, ReduceOp::kMax, 1.0, 1.0, 0, 0}, {60011}, Small);
  TestReducescatter(hosts, {DataType::kInt32, ReduceOp::kSum, 1.0, 1.0, 0, 0}, {60011}, Large);
}

// A joined rank has no slice, and a host whose ranks have all joined takes no part.
void TestJoined(const std::vector<int>& hosts, const std::set<size_t>& joined) {
  constexpr int64_t kRows = 30000;
  const size_t size = hosts.size();
  Cluster cluster(hosts, true);
  std::vector<std::vector<std::vector<float>>> in(size), out(size), gathered(size);
  std::vector<int32_t> last(size, -1);
  Outcomes joins(size), runs(2 * (size - joined.size()));
  size_t runner = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    in[rank].push_back(Values(rank, 0, kRows));
    if (joined.count(rank) != 0) {
      cluster.engines[rank]->Submit(Join(&last[rank], joins.At(rank)));
      continue;
    }
    out[rank].emplace_back(
        static_cast<size_t>(RowsOf(kRows, static_cast<int>(rank), static_cast<int>(size))));
    Request scatter = Rows(Kind::kReducescatter, in[rank], {1}, runs.At(runner++));
    scatter.buffers[0].out = out[rank][0].data();
    cluster.engines[rank]->Submit(std::move(scatter));
    Request gather = Rows(Kind::kAllgather, in[rank], {1}, runs.At(runner++));
    gather.allocate = AllocateIn(&gathered[rank], {1});
    cluster.engines[rank]->Submit(std::move(gather));
  }
  CheckOk(runs.Wait());
  std::vector<float> all;
  for (size_t rank = 0; rank < size; ++rank) {
    if (joined.count(rank) != 0) continue;
    all.insert(all.end(), in[rank][0].begin(), in[rank][0].end());
    const auto first = static_cast<size_t>(RowsBegin(kRows, static_cast<int>(rank), static_cast<int>(size)));
    for (size_t k = 0; k < out[rank][0].size(); ++k) {
      float sum = 0;
      for (size_t other = 0; other < size; ++other)
        sum += joined.count(other) ? 0 : Value(other, 0, first + k);
      CHECK(out[rank][0][k] == sum);
    }
    cluster.engines[rank]->Submit(Join(&last[rank], joins.At(rank)));
  }
  for (size_t rank = 0; rank < size; ++rank) CHECK(joined.count(rank) != 0 || gathered[rank][0] == all);
  CheckOk(joins.Wait());
  cluster.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  using namespace tfddl;
  TestHosts();
  TestDecision();
  for (const auto& hosts : MoreLayouts()) {
    for (int root = 0; root < static_cast<int>(hosts.size()); ++root) {
      for (size_t pieces : {1, 2, 10}) TestTree(hosts, root, pieces);
    }
    for (int root = 0; root < 9; ++root) {
      for (size_t pieces : {1, 10}) TestTree(std::vector<int>(9, 0), root, pieces);
    }
    TestBroadcast(hosts, 0);
    TestBroadcast(hosts, hosts.size() - 1);
    std::vector<int64_t> rows, few(hosts.size(), 1);
    for (size_t rank = 0; rank < hosts.size(); ++rank)
      rows.push_back(rank == 1 ? 0 : 700 + 50 * static_cast<int64_t>(rank));
    TestAllgather(hosts, rows);
    TestAllgather(hosts, few);
    TestAllgather(hosts, std::vector<int64_t>(hosts.size(), 3000));
    TestReducescatters(hosts);
  }
  TestJoined({0, 0, 1, 1}, {1});
  TestJoined({0, 0, 1, 1}, {2, 3});
  TestJoined({0, 0, 0, 1, 1, 2}, {0, 5});
  std::puts("hosts: ok");
  return 0;
}
