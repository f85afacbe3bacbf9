// The arithmetic of reductions, against plain loops.
#include "core/reduce.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "core/half.h"
#include "tests/job.h"

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

// 2048 + 1 + 1 is 2050 in float16 only when the sum is formed in float32.
void TestAccumulation() {
  const Float16 parts[3] = {ToFloat16(2048.0f), ToFloat16(1.0f), ToFloat16(1.0f)};
  const void* sources[3] = {&parts[0], &parts[1], &parts[2]};
  Float16 sum;
  Reduce({DataType::kFloat16, ReduceOp::kSum, 1.0, 1.0, 3}, sources, &sum, 1);
  CHECK(ToFloat(sum) == 2050.0f);
}

void TestIntegers() {
  const int32_t a[3] = {-7, 5, 2147483647};
  const int32_t b[3] = {2, 2, 1};
  const void* sources[2] = {a, b};
  int32_t out[3];
  Reduce({DataType::kInt32, ReduceOp::kAverage, 1.0, 1.0, 2}, sources, out, 2);
  CHECK(out[0] == -2 && out[1] == 3);  // toward zero
  Reduce({DataType::kInt32, ReduceOp::kSum, 0.5, 3.0, 2}, sources, out, 2);
  CHECK(out[0] == -6 && out[1] == 9);  // (-3 + 1) * 3, (2 + 1) * 3
  Reduce({DataType::kInt32, ReduceOp::kSum, 1.0, 1.0, 2}, sources, out, 3);
  CHECK(out[2] == std::numeric_limits<int32_t>::min());
  const int64_t large = (int64_t{1} << 53) + 1;
  const void* same[2] = {&large, &large};
  int64_t mean;
  Reduce({DataType::kInt64, ReduceOp::kAverage, 1.0, 1.0, 2}, same, &mean, 1);
  CHECK(mean == large);  // a double could not hold it
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestFloat16();
  tfddl::TestBFloat16();
  tfddl::TestAccumulation();
  tfddl::TestIntegers();
  std::puts("reduce: ok");
  return 0;
}
