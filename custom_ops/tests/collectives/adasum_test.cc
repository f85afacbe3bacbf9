// Compares Adasum with plain loops along the tree of adasum.h.
#include "core/collectives/adasum.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/arithmetic/adasum_pair.h"
#include "core/arithmetic/half.h"
#include "tests/engine/job.h"
#include "tests/sanitized.h"

namespace tfddl {
namespace {

using Vector = std::vector<float>;
using Group = std::vector<Vector>;

Vector Pair(const Vector& a, const Vector& b) {
  double aa = 0, ab = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    aa += static_cast<double>(a[i]) * a[i];
    ab += static_cast<double>(a[i]) * b[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  Vector out(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    out[i] = static_cast<float>((aa == 0 ? 1 : 1 - ab / (2 * aa)) * a[i] +
                                (bb == 0 ? 1 : 1 - ab / (2 * bb)) * b[i]);
  }
  return out;
}

Vector Tree(std::vector<Vector> vectors) {
  size_t power = 1;
  while (2 * power <= vectors.size()) power *= 2;
  for (size_t rank = power; rank < vectors.size(); ++rank) {
    vectors[rank - power] = Pair(vectors[rank - power], vectors[rank]);
  }
  for (size_t step = 1; step < power; step *= 2) {
    for (size_t rank = 0; rank < power; rank += 2 * step)
      vectors[rank] = Pair(vectors[rank], vectors[rank + step]);
  }
  return vectors[0];
}

// Submits a group of tensors on each rank, checks that all ranks get the same bits, and returns the results.
Group Run(const std::vector<Group>& in) {
  Job job(static_cast<int>(in.size()), 3);
  std::vector<Group> out = in;
  Outcomes outcomes(in.size());
  for (size_t rank = 0; rank < in.size(); ++rank) {
    Request request;
    request.name = "adasum";
    request.signature = "adasum";
    request.op = ReduceOp::kAdasum;
    for (size_t i = 0; i < in[rank].size(); ++i) {
      out[rank][i].assign(in[rank][i].size(), -1.0f);
      request.buffers.push_back(
          {in[rank][i].data(), out[rank][i].data(), static_cast<int64_t>(in[rank][i].size())});
    }
    request.done = outcomes.At(rank);
    job.engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  job.End();
  for (const Group& group : out) {
    for (size_t i = 0; i < group.size(); ++i) {
      CHECK(group[i].empty() ||
            std::memcmp(group[i].data(), out[0][i].data(), group[i].size() * sizeof(float)) == 0);
    }
  }
  return out[0];
}

std::vector<Group> Normal(int size, const std::vector<size_t>& counts) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::normal_distribution<float> normal(0.3f, 1.0f);
  std::vector<Group> in(static_cast<size_t>(size));
  for (Group& group : in) {
    for (size_t count : counts) {
      group.emplace_back(count);
      for (float& value : group.back()) value = normal(random);
    }
  }
  return in;
}

void TestTree(int size, const std::vector<size_t>& counts) {
  const auto in = Normal(size, counts);
  const Group out = Run(in);
  for (size_t i = 0; i < counts.size(); ++i) {
    std::vector<Vector> vectors;
    for (const Group& group : in) vectors.push_back(group[i]);
    const Vector expected = Tree(std::move(vectors));
    for (size_t k = 0; k < counts[i]; ++k) {
      CHECK(std::abs(out[i][k] - expected[k]) <= 1e-6f * std::max(1.0f, std::abs(expected[k])));
    }
  }
}

// The result of a tensor does not depend on the other tensors of its group.
void TestCompany(int size) {
  const auto together = Normal(size, {70001, 0, 3, 20});
  const Group out = Run(together);
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<Group> alone;
    for (const Group& group : together) alone.push_back({group[i]});
    CHECK(Run(alone)[0] == out[i]);
  }
}

// The sum of equal vectors is that vector; orthogonal vectors add up; zeros change nothing.
void TestEqualAndOrthogonal(int size) {
  const auto ranks = static_cast<size_t>(size);
  const Vector same = Normal(1, {1000})[0][0];
  std::vector<Group> in;
  Vector sum;
  for (size_t rank = 0; rank < ranks; ++rank) {
    Vector own(ranks, 0.0f);
    own[rank] = static_cast<float>(rank + 2);
    sum.push_back(own[rank]);
    const Vector only_last = rank + 1 == ranks ? same : Vector(same.size(), 0.0f);
    in.push_back({same, own, only_last, Vector(5, 0.0f)});
  }
  const Group out = Run(in);
  CHECK(out[0] == same && out[1] == sum && out[2] == same && out[3] == Vector(5, 0.0f));
}

void TestNotFinite(int size) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto in = Normal(size, {9, 9});
    in.back()[0][4] = bad;
    const Group out = Run(in);
    for (float value : out[0]) CHECK(std::isnan(value));
    for (float value : out[1]) CHECK(std::isfinite(value));
  }
}

// 16-bit types: dot products do not overflow, and the result is rounded once.
template <typename T, typename Make>
void TestNarrow(DataType dtype, Make make) {
  std::vector<T> a(100, make(300.0f)), b(100, make(-300.0f)), out(100);
  b[0] = make(300.0f);
  const AdasumDots dots = AdasumDotsOf(dtype, a.data(), b.data(), 100);
  CHECK(dots.aa == 9e6 && dots.bb == 9e6 && dots.ab == -98 * 90000.0);
  AdasumPair(dtype, dots, a.data(), b.data(), out.data(), 100);
  CHECK(ToFloat(out[0]) == ToFloat(make(static_cast<float>((1 + 0.49) * 600))) && ToFloat(out[1]) == 0.0f);
}

void TestAll() {
  for (int size = 1; size <= (kSanitized ? 5 : 9); ++size) {
    TestTree(size, {5});
    TestTree(size, {3, 0, 60001, 1, 2});
    TestEqualAndOrthogonal(size);
    TestCompany(size);
    if (size > 1) TestNotFinite(size);
  }
  TestTree(3, {300007});
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestNarrow<tfddl::Float16>(tfddl::DataType::kFloat16, tfddl::ToFloat16);
  tfddl::TestNarrow<tfddl::BFloat16>(tfddl::DataType::kBFloat16, tfddl::ToBFloat16);
  for (bool over_shm : {false, true}) {
    tfddl::Job::over_shm = over_shm;
    tfddl::TestAll();
  }
  std::puts("adasum: ok");
  return 0;
}
