// The double of NCCL: compares each collective, type and operator with a plain loop.
#include <cmath>
#include <numeric>
#include <type_traits>

#include "core/arithmetic/half.h"
#include "tests/double/rank.h"

namespace fake {
namespace {

using tfddl::BFloat16;
using tfddl::Float16;

// Exceeds the double's slots, and is no multiple of a slot.
constexpr size_t kLong = 70001;

double ValueOf(Float16 element) { return tfddl::ToFloat(element); }
double ValueOf(BFloat16 element) { return tfddl::ToFloat(element); }
template <typename T>
double ValueOf(T element) {
  return static_cast<double>(element);
}

template <typename T>
T Element(double value) {
  if constexpr (std::is_same_v<T, Float16>)
    return tfddl::ToFloat16(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, BFloat16>)
    return tfddl::ToBFloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

// Small enough for products of three values in 8 bits, and exact in bfloat16.
double Input(int rank, size_t i) { return static_cast<double>(1 + (i + 3 * rank) % 5); }

template <typename T>
std::vector<T> Inputs(int rank, size_t n) {
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = Element<T>(Input(rank, i));
  return values;
}

double Reduced(int op, int size, size_t i, bool whole) {
  double result = Input(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = Input(rank, i);
    if (op == ncclProd)
      result *= next;
    else if (op == ncclMax)
      result = std::max(result, next);
    else if (op == ncclMin)
      result = std::min(result, next);
    else
      result += next;
  }
  if (op != ncclAvg) return result;
  return whole ? std::floor(result / size) : result / size;
}

template <typename T>
void CheckReduced(const std::vector<T>& values, int op, int size, size_t first) {
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = Reduced(op, size, first + i, std::is_integral_v<T>);
    // Only averages of floats are inexact.
    const double tolerance = op == ncclAvg ? expected * (sizeof(T) == 2 ? 0.01 : 1e-6) : 0;
    CHECK(std::abs(ValueOf(values[i]) - expected) <= tolerance);
  }
}

template <typename T>
void TestReductions(const Rank& rank, int type) {
  for (int op = ncclSum; op <= ncclAvg; ++op) {
    Array<T> in(Inputs<T>(rank.rank, kLong));
    Array<T> out(std::vector<T>(kLong, T{}));
    rank.Enqueued(ncclAllReduce(in.get(), out.get(), kLong, type, op, rank.comm, rank.stream));
    CheckReduced(out.Read(rank.stream), op, rank.size, 0);
    rank.Enqueued(ncclAllReduce(in.get(), in.get(), kLong, type, op, rank.comm, rank.stream));
    CheckReduced(in.Read(rank.stream), op, rank.size, 0);

    const int root = rank.size - 1;
    Array<T> again(Inputs<T>(rank.rank, 5));
    T* at_root = rank.rank == root ? out.get() : nullptr;
    rank.Enqueued(ncclReduce(again.get(), at_root, 5, type, op, root, rank.comm, rank.stream));
    std::vector<T> reduced = out.Read(rank.stream);
    reduced.resize(5);
    CheckReduced(reduced, op, rank.size, 0);

    const size_t share = 10001;
    Array<T> whole(Inputs<T>(rank.rank, share * rank.size));
    Array<T> part(std::vector<T>(share, T{}));
    rank.Enqueued(ncclReduceScatter(whole.get(), part.get(), share, type, op, rank.comm, rank.stream));
    CheckReduced(part.Read(rank.stream), op, rank.size, share * rank.rank);
  }
}

template <typename T>
void TestCopies(const Rank& rank, int type) {
  const size_t n = 10001;
  Array<T> in(Inputs<T>(rank.rank, n));
  Array<T> all(std::vector<T>(n * rank.size, T{}));
  rank.Enqueued(ncclAllGather(in.get(), all.get(), n, type, rank.comm, rank.stream));
  const std::vector<T> gathered = all.Read(rank.stream);
  for (int from = 0; from < rank.size; ++from)
    for (size_t i = 0; i < n; ++i) CHECK(ValueOf(gathered[n * from + i]) == Input(from, i));
  for (int root = 0; root < rank.size; ++root) {
    Array<T> out(std::vector<T>(n, T{}));
    const T* source = rank.rank == root ? in.get() : nullptr;
    rank.Enqueued(ncclBroadcast(source, out.get(), n, type, root, rank.comm, rank.stream));
    const std::vector<T> values = out.Read(rank.stream);
    for (size_t i = 0; i < n; ++i) CHECK(ValueOf(values[i]) == Input(root, i));
  }
}

template <typename T>
void TestType(int size, int type) {
  OnRanks(size, [type](Rank& rank) {
    TestReductions<T>(rank, type);
    TestCopies<T>(rank, type);
  });
}

void TestTypes(int size) {
  TestType<int8_t>(size, ncclInt8);
  TestType<uint8_t>(size, ncclUint8);
  TestType<int32_t>(size, ncclInt32);
  TestType<uint32_t>(size, ncclUint32);
  TestType<int64_t>(size, ncclInt64);
  TestType<uint64_t>(size, ncclUint64);
  TestType<Float16>(size, ncclFloat16);
  TestType<float>(size, ncclFloat32);
  TestType<double>(size, ncclFloat64);
  TestType<BFloat16>(size, ncclBfloat16);
}

}  // namespace
}  // namespace fake

int main() {
  for (int size = 1; size <= 3; ++size) fake::TestTypes(size);
  CHECK(fake::TakeFaults().empty());
}
