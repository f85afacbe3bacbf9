#include "core/arithmetic/adasum_pair.h"

#include <type_traits>

#include "core/arithmetic/half.h"

namespace tfddl {
namespace {

double Load(double value) { return value; }
double Load(float value) { return value; }
double Load(Float16 value) { return ToFloat(value); }
double Load(BFloat16 value) { return ToFloat(value); }

void Store(double value, double* out) { *out = value; }
void Store(double value, float* out) { *out = static_cast<float>(value); }
void Store(double value, Float16* out) { *out = ToFloat16(static_cast<float>(value)); }
void Store(double value, BFloat16* out) { *out = ToBFloat16(static_cast<float>(value)); }

constexpr int kLanes = 4;  // sums side by side, which the compiler can vectorise

struct LaneDots {
  double aa[kLanes] = {}, ab[kLanes] = {}, bb[kLanes] = {};
  void Add(int lane, double x, double y) {
    aa[lane] += x * x;
    ab[lane] += x * y;
    bb[lane] += y * y;
  }
};

double SumOfLanes(const double (&lanes)[kLanes]) { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]); }

template <typename T>
AdasumDots DotsOf(const T* a, const T* b, int64_t count) {
  LaneDots dots;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) dots.Add(lane, Load(a[i + lane]), Load(b[i + lane]));
  }
  for (int lane = 0; i < count; ++lane, ++i) dots.Add(lane, Load(a[i]), Load(b[i]));
  return {SumOfLanes(dots.aa), SumOfLanes(dots.ab), SumOfLanes(dots.bb)};
}

template <typename T>
void Pair(double of_a, double of_b, const T* a, const T* b, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) Store(of_a * Load(a[i]) + of_b * Load(b[i]), &out[i]);
}

// Calls `function` with a null pointer of the type that stands for `dtype`: one of those that Supports()
// admits.
template <typename F>
auto WithType(DataType dtype, F function) {
  switch (dtype) {
    case DataType::kFloat16:
      return function(static_cast<Float16*>(nullptr));
    case DataType::kBFloat16:
      return function(static_cast<BFloat16*>(nullptr));
    case DataType::kFloat64:
      return function(static_cast<double*>(nullptr));
    default:
      return function(static_cast<float*>(nullptr));
  }
}

}  // namespace

AdasumDots AdasumDotsOf(DataType dtype, const void* a, const void* b, int64_t count) {
  return WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    return DotsOf(static_cast<const T*>(a), static_cast<const T*>(b), count);
  });
}

void AdasumPair(DataType dtype, const AdasumDots& dots, const void* a, const void* b, void* out,
                int64_t count) {
  const double of_a = dots.aa == 0 ? 1 : 1 - dots.ab / (2 * dots.aa);
  const double of_b = dots.bb == 0 ? 1 : 1 - dots.ab / (2 * dots.bb);
  WithType(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Pair(of_a, of_b, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), count);
  });
}

}  // namespace tfddl
