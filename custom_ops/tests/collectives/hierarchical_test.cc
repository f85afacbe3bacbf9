// Allreduce over several hosts.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/support.h"
#include "core/arithmetic/half.h"
#include "core/arithmetic/reduce.h"
#include "core/topology/by_hosts.h"
#include "core/topology/hosts.h"
#include "tests/collectives/cluster.h"
#include "tests/engine/join_job.h"

namespace tfddl {
namespace {

// Values whose sums are exact in the accumulator type, but not in float16 and bfloat16.
std::vector<char> Whole(DataType dtype, size_t rank, size_t count) {
  std::vector<char> data(count * SizeOf(dtype));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>((i * 37 + rank * 101) % 251);
  for (size_t i = 0; i < count; ++i) {
    char* const at = data.data() + i * SizeOf(dtype);
    const auto value = static_cast<float>((i * 7 + rank * 1009) % 2039);
    const double wide = value;
    const auto store = [at](auto stored, size_t index = 0) {
      std::memcpy(at + index * sizeof stored, &stored, sizeof stored);
    };
    switch (dtype) {
      case DataType::kFloat16:
        store(ToFloat16(value));
        break;
      case DataType::kBFloat16:
        store(ToBFloat16(value));
        break;
      case DataType::kFloat32:
        store(value);
        break;
      case DataType::kFloat64:
        store(wide);
        break;
      case DataType::kComplex64:
        store(value);
        store(-value, 1);
        break;
      case DataType::kComplex128:
        store(wide);
        store(-wide, 1);
        break;
      case DataType::kBool:
        store(static_cast<char>((i + rank) % 3 == 0));
        break;
      default:
        break;
    }
  }
  return data;
}

Request Like(const Reduction& reduction, size_t count) {
  Request request;
  request.name = std::string(NameOf(reduction.dtype)) + NameOf(reduction.op) + std::to_string(count);
  request.dtype = reduction.dtype;
  request.op = reduction.op;
  request.prescale = reduction.prescale;
  request.postscale = reduction.postscale;
  request.signature =
      Signature(Kind::kAllreduce).AddTensor(reduction.dtype, {static_cast<int64_t>(count)}).text();
  return request;
}

// Whether the partial result of a host is rounded (topology/two_steps.h).
bool RoundedTwice(const Reduction& reduction) {
  const bool half = reduction.dtype == DataType::kFloat16 || reduction.dtype == DataType::kBFloat16;
  return half && (reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage);
}

// Whether values of 16 bits differ by two units in the last place at most: their bits are ordered as they
// are.
bool Near(DataType dtype, const std::vector<char>& found, const std::vector<char>& expected) {
  CHECK(SizeOf(dtype) == 2);
  for (size_t i = 0; i < expected.size(); i += 2) {
    int16_t one, other;
    std::memcpy(&one, &found[i], 2);
    std::memcpy(&other, &expected[i], 2);
    if (std::abs(one - other) > 2) return false;
  }
  return true;
}

// For every dtype and operation, the result equals that of a single rank, and the inputs do not change.
void TestAgainstOneRank(Cluster* cluster, Reduction reduction, size_t count, bool in_place) {
  const size_t size = cluster->engines.size();
  reduction.size = reduction.divisor = static_cast<int>(size);
  std::vector<std::vector<char>> inputs, results;
  std::vector<const void*> sources;
  for (size_t rank = 0; rank < size; ++rank) inputs.push_back(Whole(reduction.dtype, rank, count));
  const auto before = inputs;
  for (const auto& input : before) sources.push_back(input.data());
  std::vector<char> expected(count * SizeOf(reduction.dtype));
  Reduce(reduction, sources.data(), expected.data(), static_cast<int64_t>(count));
  results.assign(size, std::vector<char>(expected.size()));
  cluster->Run([&](size_t rank) {
    Request request = Like(reduction, count);
    char* const out = in_place ? inputs[rank].data() : results[rank].data();
    request.buffers.push_back({inputs[rank].data(), out, static_cast<int64_t>(count)});
    return request;
  });
  CHECK(in_place || inputs == before);
  const auto& found = in_place ? inputs : results;
  for (const auto& result : found) CHECK(result == found[0]);
  CHECK(RoundedTwice(reduction) ? Near(reduction.dtype, found[0], expected) : found[0] == expected);
}

void TestTypes(Cluster* cluster) {
  for (int type = 0; type <= static_cast<int>(DataType::kComplex128); ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (auto op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (!Supports(op, dtype)) continue;
      const bool floats = dtype <= DataType::kFloat64 || dtype >= DataType::kComplex64;
      if (floats && op == ReduceOp::kProduct) continue;  // rounding depends on the order
      TestAgainstOneRank(cluster, {dtype, op, 1.0, 1.0, 0, 0}, 40001, type % 2 == 0);
    }
  }
  TestAgainstOneRank(cluster, {DataType::kFloat32, ReduceOp::kSum, 0.5, 4.0, 0, 0}, 40001, false);
  TestAgainstOneRank(cluster, {DataType::kInt32, ReduceOp::kSum, 0.5, 0.25, 0, 0}, 40001, false);
  TestAgainstOneRank(cluster, {DataType::kUInt8, ReduceOp::kAverage, 1.0, 1.0, 0, 0}, 40001, false);
  for (double factor : {1e6, 1e-9}) {  // between the factors, no sum fits into float16
    TestAgainstOneRank(cluster, {DataType::kFloat16, ReduceOp::kSum, factor, 1 / factor, 0, 0}, 40001, false);
  }
}

// Ranges of several segments, with lengths near a multiple of a segment; several collectives at once.
void TestLengths(Cluster* cluster) {
  for (size_t count :
       {size_t{0}, size_t{1}, size_t{20000}, size_t{262144}, size_t{524289}, size_t{2000003}}) {
    if (kSanitized && count > 600000) continue;
    TestAgainstOneRank(cluster, {DataType::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 0, 0}, count,
                       count % 2 == 0);
  }
}

// With numbers that need rounding, all ranks and all runs give the same bits.
void TestBits(const std::vector<int>& hosts) {
  constexpr size_t kCount = kSanitized ? 175001 : 700001;
  std::vector<std::vector<float>> first;
  for (int run = 0; run < (kSanitized ? 2 : 3); ++run) {
    Cluster cluster(hosts, true);
    std::vector<std::vector<float>> values;
    for (size_t rank = 0; rank < hosts.size(); ++rank) values.push_back(RoughValues(rank, kCount));
    cluster.Run([&](size_t rank) { return Allreduce("x", &values[rank], nullptr); });
    for (const auto& result : values) CHECK(result == values[0]);
    if (first.empty()) first = values;
    CHECK(values == first);
    double error = 0;
    for (size_t i = 0; i < kCount; ++i) {
      double sum = 0;
      for (size_t rank = 0; rank < hosts.size(); ++rank) sum += static_cast<double>(Rough(rank, i));
      error = std::max(error, std::abs(sum - static_cast<double>(values[0][i])));
    }
    CHECK(error < 1e-5);
    cluster.End();
  }
}

// Each host sends 2 n (H - 1) / H bytes, whatever its number of ranks.
void TestTraffic(const std::vector<int>& hosts) {
  constexpr size_t kCount = kSanitized ? 150000 : 600000;
  size_t sent[2];
  const auto host_count = static_cast<size_t>(Hosts(hosts, 0).hosts());
  for (bool hierarchical : {false, true}) {
    Cluster cluster(hosts, hierarchical);
    std::vector<std::vector<float>> values;
    for (size_t rank = 0; rank < hosts.size(); ++rank) values.push_back(RoughValues(rank, kCount));
    cluster.Run([&](size_t rank) { return Allreduce("x", &values[rank], nullptr); });
    sent[hierarchical] = cluster.Sent();
    cluster.End();
  }
  const size_t least = 2 * kCount * sizeof(float) * (host_count - 1);
  CHECK(sent[true] >= least && sent[true] < least + least / 20);
  CHECK(sent[false] > sent[true] + sent[true] / 4);
}

// Small data of many ranks on a host: each host sends them once, and an owner without an element sends
// nothing.
void TestSmall() {
  std::vector<int> hosts;
  for (int rank = 0; rank < 64; ++rank) hosts.push_back(rank / 32);
  for (size_t count : {size_t{5}, size_t{33}, size_t{1000}}) {
    if (kSanitized && count != 5) continue;
    Cluster cluster(hosts, true);
    CHECK(ReduceByHosts({DataType::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 64, 64}, Hosts(hosts, 0), count));
    TestAgainstOneRank(&cluster, {DataType::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 0, 0}, count, false);
    CHECK(cluster.MostMessages() == 1 && cluster.Messages() == 2 * std::min(count, hosts.size() / 2));
    cluster.End();
  }
}

// Small data of hosts with different numbers of ranks, on both sides of the threshold.
void TestSmallOnRaggedHosts() {
  size_t by_hosts = 0, flat = 0;
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{
           {0, 0, 0, 0, 1}, {0, 1, 1, 1, 2, 2}, {0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2}}) {
    const int size = static_cast<int>(hosts.size());
    Cluster cluster(hosts, true);
    for (DataType dtype : {DataType::kFloat16, DataType::kInt8, DataType::kFloat32, DataType::kComplex128}) {
      for (size_t count : {size_t{1}, size_t{7}, size_t{300}, size_t{3001}}) {
        const Reduction reduction{dtype, ReduceOp::kAverage, 1.0, 1.0, size, size};
        ++(ReduceByHosts(reduction, Hosts(hosts, 0), count) ? by_hosts : flat);
        TestAgainstOneRank(&cluster, reduction, count, count % 2 == 0);
      }
    }
    cluster.End();
  }
  CHECK(by_hosts > 0 && flat > 0);
}

// Sums of float16 that are larger than its largest number have averages that are not, and partial results
// travel in two bytes.
void TestHalves(const std::vector<int>& hosts) {
  constexpr size_t kCount = kSanitized ? 150000 : 600000;
  Cluster cluster(hosts, true);
  std::vector<std::vector<Float16>> values(hosts.size(), std::vector<Float16>(kCount, ToFloat16(60000.0f)));
  cluster.Run([&](size_t rank) {
    Request request = Like({DataType::kFloat16, ReduceOp::kAverage, 1.0, 1.0, 0, 0}, kCount);
    request.buffers.push_back({values[rank].data(), values[rank].data(), int64_t{kCount}});
    return request;
  });
  for (const auto& result : values) {
    for (Float16 each : result) CHECK(ToFloat(each) == ToFloat(ToFloat16(60000.0f)));
  }
  const auto host_count = static_cast<size_t>(Hosts(hosts, 0).hosts());
  const size_t least = 2 * kCount * sizeof(Float16) * (host_count - 1);
  CHECK(cluster.Sent() >= least && cluster.Sent() < least + least / 20);
  cluster.End();
}

// A joined rank owns no slice, even if its host keeps one active rank or none.
void TestJoined(const std::vector<int>& hosts, const std::vector<size_t>& joined) {
  constexpr size_t kCount = 50000;
  const size_t size = hosts.size();
  Cluster cluster(hosts, true);
  std::vector<std::vector<float>> values;
  std::vector<int32_t> last(size, -1);
  std::vector<bool> active(size, true);
  for (size_t rank : joined) active[rank] = false;
  for (size_t rank = 0; rank < size; ++rank) values.push_back(Values(rank, 0, kCount));
  Outcomes joins(size), runs(size - joined.size());
  size_t runner = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    cluster.engines[rank]->Submit(active[rank] ? Allreduce("x", &values[rank], runs.At(runner++))
                                               : Join(&last[rank], joins.At(rank)));
  }
  for (const Status& status : runs.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < size; ++rank) {
    if (active[rank]) cluster.engines[rank]->Submit(Join(&last[rank], joins.At(rank)));
  }
  for (const Status& status : joins.Wait()) CHECK(status.ok());
  for (size_t i = 0; i < kCount; i += 97) {
    float sum = 0;
    for (size_t rank = 0; rank < size; ++rank) sum += active[rank] ? Value(rank, 0, i) : 0;
    for (size_t rank = 0; rank < size; ++rank) CHECK(!active[rank] || values[rank][i] == sum);
  }
  cluster.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (const auto& hosts : tfddl::Layouts()) {
    tfddl::Cluster cluster(hosts, true);
    if (!kSanitized || hosts == tfddl::Layouts().front()) tfddl::TestTypes(&cluster);
    tfddl::TestLengths(&cluster);
    cluster.End();
    tfddl::TestBits(hosts);
    tfddl::TestTraffic(hosts);
    tfddl::TestHalves(hosts);
  }
  tfddl::TestSmall();
  tfddl::TestSmallOnRaggedHosts();
  tfddl::TestJoined({0, 0, 1, 1}, {1});
  tfddl::TestJoined({0, 0, 1, 1}, {2, 3});
  tfddl::TestJoined({0, 0, 0, 1, 1, 2}, {0, 5});
  std::puts("hierarchical: ok");
  return 0;
}
