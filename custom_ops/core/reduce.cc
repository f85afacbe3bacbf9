#include "core/reduce.h"

#include <algorithm>
#include <type_traits>

#include "core/half.h"

namespace tfddl {
namespace {

constexpr int64_t kBlock = 1024;  // elements; the accumulators stay in the first-level cache

// How a type is accumulated and how it gets in and out of the accumulator.
template <typename T>
struct Arithmetic {
  using Accumulator = T;
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};

template <>
struct Arithmetic<Float16> {
  using Accumulator = float;
  static float Load(Float16 value) { return ToFloat(value); }
  static Float16 Store(float value) { return ToFloat16(value); }
};

template <>
struct Arithmetic<BFloat16> {
  using Accumulator = float;
  static float Load(BFloat16 value) { return ToFloat(value); }
  static BFloat16 Store(float value) { return ToBFloat16(value); }
};

// Signed overflow is undefined in C++; gradients of integers wrap as NumPy's do.
template <typename A>
A Add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename A>
A Scale(A value, double factor) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(factor * static_cast<double>(value));
  } else {
    return value * static_cast<A>(factor);
  }
}

template <typename A>
void Finish(const Reduction& r, A* values, int64_t count) {
  const bool average = r.op == ReduceOp::kAverage;
  if (average && std::is_integral_v<A> && r.postscale == 1.0) {
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] / static_cast<A>(r.size);
    return;
  }
  const double factor = average ? r.postscale / r.size : r.postscale;
  if (factor == 1.0) return;
  for (int64_t i = 0; i < count; ++i) values[i] = Scale(values[i], factor);
}

template <typename T>
void ReduceTyped(const Reduction& r, const void* const* sources, void* out, int64_t count) {
  using A = typename Arithmetic<T>::Accumulator;
  A accumulator[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    for (int rank = 0; rank < r.size; ++rank) {
      const T* source = static_cast<const T*>(sources[rank]) + start;
      if (rank == 0 && r.prescale == 1.0) {
        for (int64_t i = 0; i < length; ++i) accumulator[i] = Arithmetic<T>::Load(source[i]);
      } else if (rank == 0) {
        for (int64_t i = 0; i < length; ++i)
          accumulator[i] = Scale(Arithmetic<T>::Load(source[i]), r.prescale);
      } else if (r.prescale == 1.0) {
        for (int64_t i = 0; i < length; ++i)
          accumulator[i] = Add(accumulator[i], Arithmetic<T>::Load(source[i]));
      } else {
        for (int64_t i = 0; i < length; ++i) {
          accumulator[i] = Add(accumulator[i], Scale(Arithmetic<T>::Load(source[i]), r.prescale));
        }
      }
    }
    Finish(r, accumulator, length);
    T* result = static_cast<T*>(out) + start;
    for (int64_t i = 0; i < length; ++i) result[i] = Arithmetic<T>::Store(accumulator[i]);
  }
}

}  // namespace

void Reduce(const Reduction& reduction, const void* const* sources, void* out, int64_t count) {
  switch (reduction.dtype) {
    case DataType::kFloat16:
      return ReduceTyped<Float16>(reduction, sources, out, count);
    case DataType::kBFloat16:
      return ReduceTyped<BFloat16>(reduction, sources, out, count);
    case DataType::kFloat32:
      return ReduceTyped<float>(reduction, sources, out, count);
    case DataType::kFloat64:
      return ReduceTyped<double>(reduction, sources, out, count);
    case DataType::kInt32:
      return ReduceTyped<int32_t>(reduction, sources, out, count);
    case DataType::kInt64:
      return ReduceTyped<int64_t>(reduction, sources, out, count);
  }
}

}  // namespace tfddl
