// The types in which reductions accumulate.
#pragma once

#include <cstdint>

#include "core/arithmetic/half.h"

namespace tfddl {

// The accumulator of a type, and the conversions to it and from it.
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

// Small integers accumulate in a wider type, so that an average is right even if the sum does not fit. A sum
// that does not fit wraps when it is stored.
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

}  // namespace tfddl
