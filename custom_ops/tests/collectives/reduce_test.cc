// Compares the arithmetic of reductions with plain loops.
#include "core/arithmetic/reduce.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/support.h"
#include "core/arithmetic/half.h"
#include "tests/engine/job.h"

namespace tfddl {
namespace {

// Every float16 keeps its value through float32, and rounding goes to the nearest even neighbour.
void TestFloat16() {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    if (std::isnan(value)) {
      CHECK((ToFloat16(value).bits & 0x7c00u) == 0x7c00u && (ToFloat16(value).bits & 0x3ffu) != 0);
    } else {
      CHECK(ToFloat16(value).bits == bits);
    }
  }
  CHECK(ToFloat(Float16{0x3c00}) == 1.0f);
  CHECK(ToFloat(Float16{0x0001}) == std::ldexp(1.0f, -24));
  CHECK(ToFloat16(1.0f + std::ldexp(1.0f, -11)).bits == 0x3c00);  // a tie goes to even
  CHECK(ToFloat16(1.0f + 3 * std::ldexp(1.0f, -11)).bits == 0x3c02);
  CHECK(ToFloat16(65519.0f).bits == 0x7bff);
  CHECK(ToFloat16(65520.0f).bits == 0x7c00);
  CHECK(ToFloat16(1e10f).bits == 0x7c00);
  CHECK(ToFloat16(-std::numeric_limits<float>::infinity()).bits == 0xfc00);
}

void TestBFloat16() {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = ToFloat(BFloat16{static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      CHECK(std::isnan(ToFloat(ToBFloat16(value))));
    } else {
      CHECK(ToBFloat16(value).bits == bits);
    }
  }
  CHECK(ToBFloat16(1.0f + std::ldexp(1.0f, -8)).bits == 0x3f80);
  CHECK(ToBFloat16(1.0f + 3 * std::ldexp(1.0f, -8)).bits == 0x3f82);
}

// 2048 + 1 + 1 is 2050 in float16 only if the sum accumulates in float32.
void TestAccumulation() {
  const Float16 parts[3] = {ToFloat16(2048.0f), ToFloat16(1.0f), ToFloat16(1.0f)};
  const void* sources[3] = {&parts[0], &parts[1], &parts[2]};
  Float16 sum;
  Reduce({DataType::kFloat16, ReduceOp::kSum, 1.0, 1.0, 3, 3}, sources, &sum, 1);
  CHECK(ToFloat(sum) == 2050.0f);
}

void TestIntegers() {
  const int32_t a[3] = {-7, 5, 2147483647};
  const int32_t b[3] = {2, 2, 1};
  const void* sources[2] = {a, b};
  int32_t out[3];
  Reduce({DataType::kInt32, ReduceOp::kAverage, 1.0, 1.0, 2, 2}, sources, out, 2);
  CHECK(out[0] == -2 && out[1] == 3);  // toward zero
  Reduce({DataType::kInt32, ReduceOp::kSum, 0.5, 3.0, 2, 2}, sources, out, 2);
  CHECK(out[0] == -6 && out[1] == 9);  // (-3 + 1) * 3, (2 + 1) * 3
  Reduce({DataType::kInt32, ReduceOp::kSum, 1.0, 1.0, 2, 2}, sources, out, 3);
  CHECK(out[2] == std::numeric_limits<int32_t>::min());
  const int64_t large = (int64_t{1} << 53) + 1;
  const void* same[2] = {&large, &large};
  int64_t mean;
  Reduce({DataType::kInt64, ReduceOp::kAverage, 1.0, 1.0, 2, 2}, same, &mean, 1);
  CHECK(mean == large);  // a double could not hold it
}

// An average may count ranks that send nothing.
void TestDivisor() {
  const float floats[2] = {3.0f, 5.0f};
  const int32_t integers[2] = {3, 5};
  float mean;
  int32_t truncated;
  const void* sources[2] = {&floats[0], &floats[1]};
  Reduce({DataType::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 2, 4}, sources, &mean, 1);
  const void* whole[2] = {&integers[0], &integers[1]};
  Reduce({DataType::kInt32, ReduceOp::kAverage, 1.0, 1.0, 2, 4}, whole, &truncated, 1);
  CHECK(mean == 2.0f && truncated == 2);
}

template <typename T>
T ReduceOne(DataType dtype, ReduceOp op, const std::vector<T>& parts, double prescale = 1.0,
            double postscale = 1.0) {
  std::vector<const void*> sources;
  for (const T& part : parts) sources.push_back(&part);
  T out;
  const int size = static_cast<int>(parts.size());
  Reduce({dtype, op, prescale, postscale, size, size}, sources.data(), &out, 1);
  return out;
}

void TestExtremes() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> parts = {3.0f, -2.0f, 7.0f};
  CHECK(ReduceOne(DataType::kFloat32, ReduceOp::kMin, parts) == -2.0f);
  CHECK(ReduceOne(DataType::kFloat32, ReduceOp::kMax, parts) == 7.0f);
  CHECK(ReduceOne(DataType::kFloat32, ReduceOp::kMax, parts, -1.0, 10.0) == 20.0f);  // of the scaled values
  for (size_t i = 0; i < 3; ++i) {
    std::vector<float> with_nan = parts;
    with_nan[i] = nan;
    CHECK(std::isnan(ReduceOne(DataType::kFloat32, ReduceOp::kMin, with_nan)));
    CHECK(std::isnan(ReduceOne(DataType::kFloat32, ReduceOp::kMax, with_nan)));
  }
  const Float16 halves[2] = {ToFloat16(-1.5f), ToFloat16(0.5f)};
  const void* sources[2] = {&halves[0], &halves[1]};
  Float16 out;
  Reduce({DataType::kFloat16, ReduceOp::kMin, 1.0, 1.0, 2, 2}, sources, &out, 1);
  CHECK(out.bits == halves[0].bits);
  CHECK(ReduceOne<uint64_t>(DataType::kUInt64, ReduceOp::kMax, {1, UINT64_MAX}) == UINT64_MAX);
  CHECK(ReduceOne<uint8_t>(DataType::kBool, ReduceOp::kMin, {1, 0, 1}) == 0);
  CHECK(ReduceOne<uint8_t>(DataType::kBool, ReduceOp::kMax, {0, 0, 1}) == 1);
}

void TestProducts() {
  CHECK(ReduceOne<double>(DataType::kFloat64, ReduceOp::kProduct, {2, -3, 5}, 0.5, 4.0) == -15.0);
  CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kProduct, {100, 3}) == 44);  // wraps
  CHECK(ReduceOne<uint16_t>(DataType::kUInt16, ReduceOp::kProduct, {65535, 65535}) == 1);
  using C = std::complex<float>;
  CHECK(ReduceOne<C>(DataType::kComplex64, ReduceOp::kProduct, {{1, 2}, {3, -1}}) == C(5, 5));
  CHECK(ReduceOne<C>(DataType::kComplex64, ReduceOp::kAverage, {{1, 2}, {3, -1}}) == C(2, 0.5));
}

// A scaled integer is clamped to its type: outside of it the conversion would be undefined.
void TestFactorsOnIntegers() {
  CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kSum, {100}, 2.0) == 127);
  CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kSum, {-100}, 2.0) == -128);
  CHECK(ReduceOne<uint32_t>(DataType::kUInt32, ReduceOp::kSum, {7}, -1.0) == 0);
  CHECK(ReduceOne<int64_t>(DataType::kInt64, ReduceOp::kSum, {INT64_MAX}, 2.0) == INT64_MAX);
  CHECK(ReduceOne<uint64_t>(DataType::kUInt64, ReduceOp::kSum, {UINT64_MAX}, 0.5) == uint64_t{1} << 63);
  CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kMax, {-7, -9}, 0.5) == -3);  // toward zero
  std::vector<int8_t> many(200, 0);
  many[0] = 100;
  CHECK(ReduceOne(DataType::kInt8, ReduceOp::kAverage, many) == 0);
  CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kAverage, {100, 100}) == 100);  // the sum would not fit
  CHECK(ReduceOne<uint32_t>(DataType::kUInt32, ReduceOp::kAverage, {UINT32_MAX, UINT32_MAX}) == UINT32_MAX);
  CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kSum, {100, 100}) == -56);
  for (double factor : {1.999, 2.0, 2.001}) {
    CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kAverage, {100, 100}, 1.0, factor) == 127);
    CHECK(ReduceOne<int8_t>(DataType::kInt8, ReduceOp::kAverage, {30, 30}, 1.0, factor) ==
          int8_t(30 * factor));
  }
}

// The result has the bits of a plain loop. It depends neither on the begin of a piece nor on whether the
// result overwrites a source. The sums depend on the order of additions.
template <typename T>
void TestPieces(DataType dtype, ReduceOp op, int size, double postscale) {
  constexpr int64_t kCount = 3001;
  std::vector<std::vector<T>> parts(static_cast<size_t>(size), std::vector<T>(kCount));
  unsigned state = 1;
  for (auto& part : parts) {
    for (T& value : part)
      value = static_cast<T>(static_cast<int>(state = state * 1664525u + 1013904223u) / 7.0);
  }
  std::vector<T> expected = parts[0];
  const double factor = op == ReduceOp::kAverage ? postscale / size : postscale;
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      const T value = parts[rank][i];
      expected[i] = op == ReduceOp::kMax ? std::max(expected[i], value) : expected[i] + value;
    }
    expected[i] *= static_cast<T>(factor);
  }
  const Reduction reduction{dtype, op, 1.0, postscale, size, size};
  for (int64_t piece : {kCount, int64_t{1024}, int64_t{17}}) {
    for (size_t target = 0; target <= parts.size(); ++target) {  // the last target is not a source
      auto sources = parts;
      sources.emplace_back(kCount);
      for (int64_t begin = 0; begin < kCount; begin += piece) {
        std::vector<const void*> addresses;
        for (auto& source : sources) addresses.push_back(source.data() + begin);
        Reduce(reduction, addresses.data(), sources[target].data() + begin, std::min(piece, kCount - begin));
      }
      CHECK(sources[target] == expected);
    }
  }
}

void TestAllPieces() {
  for (int size : {1, 2, 3, 5}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      for (double postscale : {1.0, 0.3}) {
        TestPieces<float>(DataType::kFloat32, op, size, postscale);
        TestPieces<double>(DataType::kFloat64, op, size, postscale);
      }
    }
  }
}

bool IsFloating(DataType dtype) { return dtype <= DataType::kFloat64 || dtype >= DataType::kComplex64; }

// Random bits without NaN and infinity. One source gets one of each: of two NaNs, either may be the result.
std::vector<char> AnyValues(DataType dtype, int rank, size_t count) {
  const size_t element = SizeOf(dtype), part = dtype >= DataType::kComplex64 ? element / 2 : element;
  std::vector<char> values(count * element);
  unsigned state = static_cast<unsigned>(rank) + 1;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
    if (dtype == DataType::kBool) values[i] &= 1;
    if (IsFloating(dtype) && i % part == part - 1) values[i] &= static_cast<char>(0xbf);
  }
  if (IsFloating(dtype) && rank == 1) std::fill_n(values.begin() + 7 * element, element, '\xff');
  return values;
}

// All instruction sets give the same bits.
void TestEveryWidth(DataType dtype, ReduceOp op, int size, double prescale, double postscale) {
  constexpr int64_t kCount = 2100;  // two blocks and a part of one
  const Reduction reduction{dtype, op, prescale, postscale, size, size};
  std::vector<std::vector<char>> parts;
  std::vector<const void*> sources;
  for (int rank = 0; rank < size; ++rank) parts.push_back(AnyValues(dtype, rank, kCount));
  for (auto& part : parts) sources.push_back(part.data());
  std::vector<std::vector<char>> results;
  for (const ReduceLoops& loops : ReduceLoopsHere()) {
    std::vector<char> whole(kCount * SizeOf(dtype)), steps(whole);
    std::vector<char> values(kCount * SizeOf(AccumulatorType(dtype)));
    loops.reduce(reduction, sources.data(), whole.data(), kCount);
    loops.partly(reduction, sources.data(), values.data(), kCount);
    loops.finish(reduction, values.data(), steps.data(), kCount);
    CHECK(whole == steps);
    results.push_back(whole);
    CHECK(results.back() == results.front());
  }
}

void TestAllWidths() {
  for (int type = 0; type <= static_cast<int>(DataType::kComplex128); ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (ReduceOp op :
         {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (!Supports(op, dtype)) continue;
      for (int size : {1, 2, 3}) {
        TestEveryWidth(dtype, op, size, 1.0, 1.0);
        if (dtype != DataType::kBool) TestEveryWidth(dtype, op, size, 0.7, 0.3);
      }
    }
  }
}

void TestSupport() {
  CHECK(Supports(ReduceOp::kMin, DataType::kBool) && !Supports(ReduceOp::kSum, DataType::kBool));
  CHECK(Supports(ReduceOp::kSum, DataType::kComplex64) && !Supports(ReduceOp::kMax, DataType::kComplex128));
  CHECK(Supports(ReduceOp::kAdasum, DataType::kBFloat16) && !Supports(ReduceOp::kAdasum, DataType::kInt32));
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestFloat16();
  tfddl::TestBFloat16();
  tfddl::TestAccumulation();
  tfddl::TestIntegers();
  tfddl::TestDivisor();
  tfddl::TestExtremes();
  tfddl::TestProducts();
  tfddl::TestAllPieces();
  tfddl::TestFactorsOnIntegers();
  tfddl::TestAllWidths();
  tfddl::TestSupport();
  std::puts("reduce: ok");
  return 0;
}
