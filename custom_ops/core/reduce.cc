#include "core/reduce.h"

#include <algorithm>
#include <complex>
#include <functional>
#include <limits>
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

// Small integers are added up in a wider type, so that an average is right where the sum does not fit;
// a sum wraps when it is stored.
template <typename T, typename A>
struct Widened {
  using Accumulator = A;
  static A Load(T value) { return value; }
  static T Store(A value) { return static_cast<T>(value); }
};

template <>
struct Arithmetic<int8_t> : Widened<int8_t, int32_t> {};
template <>
struct Arithmetic<int16_t> : Widened<int16_t, int32_t> {};
template <>
struct Arithmetic<int32_t> : Widened<int32_t, int64_t> {};
template <>
struct Arithmetic<uint8_t> : Widened<uint8_t, uint32_t> {};
template <>
struct Arithmetic<uint16_t> : Widened<uint16_t, uint32_t> {};
template <>
struct Arithmetic<uint32_t> : Widened<uint32_t, uint64_t> {};

template <typename T>
using AccumulatorOf = typename Arithmetic<T>::Accumulator;

// Converting these takes so many registers that a loop which does more besides is slower than two.
template <typename T>
constexpr bool kCostly = std::is_same_v<T, Float16>;

template <typename A>
constexpr bool kOrdered = std::is_arithmetic_v<A>;

// Signed overflow is undefined in C++; integers wrap as NumPy's do.
template <typename A, typename F>
A Wrapping(F combine, A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(combine(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return combine(a, b);
  }
}

struct Sum {
  template <typename A>
  static A Combine(A a, A b) {
    return Wrapping(std::plus<>(), a, b);
  }
};

struct Product {
  template <typename A>
  static A Combine(A a, A b) {
    return Wrapping(std::multiplies<>(), a, b);
  }
};

// A comparison with NaN is false: `b` is taken where it is NaN, and where `a` is, `a` stays.
struct Min {
  template <typename A>
  static A Combine(A a, A b) {
    return (b < a) | (b != b) ? b : a;
  }
};

struct Max {
  template <typename A>
  static A Combine(A a, A b) {
    return (b > a) | (b != b) ? b : a;
  }
};

// An integer stays within the range of T.
template <typename T, typename A>
A Scale(A value, double factor) {
  if constexpr (std::is_integral_v<A>) {
    using Limits = std::numeric_limits<T>;
    constexpr double kLowest = static_cast<double>(Limits::min());
    // The largest value may have no double; the power of two behind it has.
    constexpr double kBeyond = 2.0 * static_cast<double>(Limits::max() / 2 + 1);
    const double product = factor * static_cast<double>(value);
    if (product >= kBeyond) return Limits::max();
    return product <= kLowest ? Limits::min() : static_cast<A>(product);
  } else if constexpr (std::is_floating_point_v<A>) {
    return value * static_cast<A>(factor);
  } else {
    return value * static_cast<typename A::value_type>(factor);
  }
}

template <typename T>
void LoadBlock(const T* source, double prescale, AccumulatorOf<T>* accumulator, int64_t length) {
  if (prescale == 1.0) {
    for (int64_t i = 0; i < length; ++i) accumulator[i] = Arithmetic<T>::Load(source[i]);
  } else {
    for (int64_t i = 0; i < length; ++i) accumulator[i] = Scale<T>(Arithmetic<T>::Load(source[i]), prescale);
  }
}

// Calls run(op) with the operation as a type, where A has it.
template <typename A, typename Run>
void WithOperation(ReduceOp op, Run run) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return run(Sum());
    case ReduceOp::kProduct:
      return run(Product());
    case ReduceOp::kMin:
      if constexpr (kOrdered<A>) run(Min());
      return;
    case ReduceOp::kMax:
      if constexpr (kOrdered<A>) run(Max());
      return;
    case ReduceOp::kAdasum:  // no sum of elements: core/adasum.h
      return;
  }
}

template <typename A, typename T, typename Load>
void CombineBlock(ReduceOp op, A* accumulator, const T* values, int64_t length, Load load) {
  WithOperation<A>(op, [&](auto operation) {
    for (int64_t i = 0; i < length; ++i) accumulator[i] = operation.Combine(accumulator[i], load(values[i]));
  });
}

// out[i] = store(a[i] op b[i]). `out` may be `a` or `b`, but overlap them in no other way.
template <typename T, typename Out, typename Store>
void CombinePair(ReduceOp op, const T* a, const T* b, Out* out, int64_t length, Store store) {
  WithOperation<AccumulatorOf<T>>(op, [&](auto operation) {
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < length; ++i) {
      out[i] = store(operation.Combine(Arithmetic<T>::Load(a[i]), Arithmetic<T>::Load(b[i])));
    }
  });
}

// What multiplies the result. An integers' Average without a factor divides, which this does not tell.
double FinalFactor(const Reduction& r) {
  return r.op == ReduceOp::kAverage ? r.postscale / r.divisor : r.postscale;
}

template <typename T>
void FinishBlock(const Reduction& r, AccumulatorOf<T>* values, T* out, int64_t count) {
  using A = AccumulatorOf<T>;
  const double factor = FinalFactor(r);
  if constexpr (std::is_integral_v<A>) {
    if (r.op == ReduceOp::kAverage && r.postscale == 1.0) {
      const A divisor = static_cast<A>(r.divisor);
      for (int64_t i = 0; i < count; ++i) out[i] = Arithmetic<T>::Store(values[i] / divisor);
      return;
    }
  }
  if (factor == 1.0) {
    for (int64_t i = 0; i < count; ++i) out[i] = Arithmetic<T>::Store(values[i]);
  } else if constexpr (kCostly<T>) {
    for (int64_t i = 0; i < count; ++i) values[i] = Scale<T>(values[i], factor);
    for (int64_t i = 0; i < count; ++i) out[i] = Arithmetic<T>::Store(values[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = Arithmetic<T>::Store(Scale<T>(values[i], factor));
  }
}

template <typename T>
void CombineScaled(const Reduction& r, const T* source, AccumulatorOf<T>* accumulator, int64_t length) {
  using A = AccumulatorOf<T>;
  A scaled[kBlock];
  LoadBlock(source, r.prescale, scaled, length);
  CombineBlock(r.op, accumulator, scaled, length, [](A value) { return value; });
}

template <typename T>
void ReduceTyped(const Reduction& r, const void* const* sources, void* out, int64_t count) {
  using A = AccumulatorOf<T>;
  auto source = [&](int rank, int64_t start) { return static_cast<const T*>(sources[rank]) + start; };
  T* result = static_cast<T*>(out);
  const bool paired = r.size >= 2 && r.prescale == 1.0 && !kCostly<T>;
  if (paired && r.size == 2 && r.op != ReduceOp::kAverage && r.postscale == 1.0) {
    return CombinePair(r.op, source(0, 0), source(1, 0), result, count,
                       [](A value) { return Arithmetic<T>::Store(value); });
  }
  A accumulator[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    if (paired) {
      CombinePair(r.op, source(0, start), source(1, start), accumulator, length,
                  [](A value) { return value; });
    } else {
      LoadBlock(source(0, start), r.prescale, accumulator, length);
    }
    for (int rank = paired ? 2 : 1; rank < r.size; ++rank) {
      if (r.prescale == 1.0) {
        CombineBlock(r.op, accumulator, source(rank, start), length,
                     [](T value) { return Arithmetic<T>::Load(value); });
      } else {
        CombineScaled(r, source(rank, start), accumulator, length);
      }
    }
    FinishBlock(r, accumulator, result + start, length);
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
    case DataType::kInt8:
      return ReduceTyped<int8_t>(reduction, sources, out, count);
    case DataType::kInt16:
      return ReduceTyped<int16_t>(reduction, sources, out, count);
    case DataType::kInt32:
      return ReduceTyped<int32_t>(reduction, sources, out, count);
    case DataType::kInt64:
      return ReduceTyped<int64_t>(reduction, sources, out, count);
    case DataType::kBool:  // a byte of 0 or 1
    case DataType::kUInt8:
      return ReduceTyped<uint8_t>(reduction, sources, out, count);
    case DataType::kUInt16:
      return ReduceTyped<uint16_t>(reduction, sources, out, count);
    case DataType::kUInt32:
      return ReduceTyped<uint32_t>(reduction, sources, out, count);
    case DataType::kUInt64:
      return ReduceTyped<uint64_t>(reduction, sources, out, count);
    case DataType::kComplex64:
      return ReduceTyped<std::complex<float>>(reduction, sources, out, count);
    case DataType::kComplex128:
      return ReduceTyped<std::complex<double>>(reduction, sources, out, count);
  }
}

}  // namespace tfddl
