#include "core/arithmetic/adasum_pair.h"

#include <type_traits>

#include "core/arithmetic/arithmetic.h"

namespace tfddl {
namespace {

template <typename T>
double Load(T value) {
  return Arithmetic<T>::Load(value);
}

template <typename T>
T Round(double value) {
  return Arithmetic<T>::Store(static_cast<AccumulatorOf<T>>(value));
}

constexpr int kLanes = 4;  // independent sums, so that the compiler can vectorise

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
  for (int64_t i = 0; i < count; ++i) out[i] = Round<T>(of_a * Load(a[i]) + of_b * Load(b[i]));
}

// Calls `function` with a null pointer to the C++ type of `dtype`, which Adasum must support (Supports()).
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
