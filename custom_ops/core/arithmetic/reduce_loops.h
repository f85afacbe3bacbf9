// The loops of reductions. No #pragma once: core/arithmetic/reduce.cc includes this file once for each
// instruction set, each time in a namespace of its own.

namespace {

constexpr int64_t kBlock = 1024;  // elements; the accumulators of a block stay in the first-level cache

// Uninitialised values of a block. An array of complex numbers would be filled with zeros first.
template <typename A>
struct Unset {
  A* get() { return reinterpret_cast<A*>(memory); }
  alignas(64) char memory[kBlock * sizeof(A)];
};

template <typename Run>
void ForBlocks(int64_t count, Run run) {
  for (int64_t start = 0; start < count; start += kBlock) run(start, std::min(kBlock, count - start));
}

// A conversion of such a type takes many registers: a loop that converts and computes is slower than two
// loops.
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

// NaN wins. A comparison with NaN is false, so a NaN in `a` stays; `b != b` takes a NaN in `b`.
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

// value * factor. An integer is clamped to the range of T.
template <typename T, typename A>
A Scale(A value, double factor) {
  if constexpr (std::is_integral_v<A>) {
    using Limits = std::numeric_limits<T>;
    constexpr double kLowest = static_cast<double>(Limits::min());
    // A double may be unable to hold the largest value, but always holds the next power of two.
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

// Calls run(operation) with the operation as a type, if A supports it.
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
    case ReduceOp::kAdasum:  // not elementwise: core/collectives/adasum.h
      return;
  }
}

template <typename A, typename T, typename Load>
void CombineBlock(ReduceOp op, A* accumulator, const T* values, int64_t length, Load load) {
  WithOperation<A>(op, [&](auto operation) {
    for (int64_t i = 0; i < length; ++i) accumulator[i] = operation.Combine(accumulator[i], load(values[i]));
  });
}

// out[i] = store(a[i] op b[i]). `out` may be `a` or `b`, but must not overlap them otherwise.
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

// The factor of the result. An Average of integers without a postscale divides instead (FinishBlock).
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
  // A mean times the number of ranks is a sum, which may not fit.
  const bool clamped = std::is_integral_v<A> && sizeof(A) > sizeof(T) && r.op == ReduceOp::kAverage;
  if (factor == 1.0 && !clamped) {
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
  Unset<A> block;
  A* const scaled = block.get();
  LoadBlock(source, r.prescale, scaled, length);
  CombineBlock(r.op, accumulator, scaled, length, [](A value) { return value; });
}

// Combines `length` elements of all sources, from `start` on, without the final factor.
template <typename T>
void Accumulate(const Reduction& r, const void* const* sources, int64_t start, int64_t length,
                AccumulatorOf<T>* accumulator) {
  using A = AccumulatorOf<T>;
  auto source = [&](int rank) { return static_cast<const T*>(sources[rank]) + start; };
  const bool paired = r.size >= 2 && r.prescale == 1.0 && !kCostly<T>;
  if (paired) {
    CombinePair(r.op, source(0), source(1), accumulator, length, [](A value) { return value; });
  } else {
    LoadBlock(source(0), r.prescale, accumulator, length);
  }
  for (int rank = paired ? 2 : 1; rank < r.size; ++rank) {
    if (r.prescale == 1.0) {
      CombineBlock(r.op, accumulator, source(rank), length,
                   [](T value) { return Arithmetic<T>::Load(value); });
    } else {
      CombineScaled(r, source(rank), accumulator, length);
    }
  }
}

template <typename T>
void ReduceTyped(const Reduction& r, const void* const* sources, T* out, int64_t count) {
  using A = AccumulatorOf<T>;
  if (r.size == 2 && r.prescale == 1.0 && !kCostly<T> && r.op != ReduceOp::kAverage && r.postscale == 1.0) {
    return CombinePair(r.op, static_cast<const T*>(sources[0]), static_cast<const T*>(sources[1]), out, count,
                       [](A value) { return Arithmetic<T>::Store(value); });
  }
  Unset<A> block;
  A* const accumulator = block.get();
  ForBlocks(count, [&](int64_t start, int64_t length) {
    Accumulate<T>(r, sources, start, length, accumulator);
    FinishBlock(r, accumulator, out + start, length);
  });
}

// Calls run(value) with a value of the C++ type of `dtype`.
template <typename Run>
void WithType(DataType dtype, Run run) {
  switch (dtype) {
    case DataType::kFloat16:
      return run(Float16());
    case DataType::kBFloat16:
      return run(BFloat16());
    case DataType::kFloat32:
      return run(float());
    case DataType::kFloat64:
      return run(double());
    case DataType::kInt8:
      return run(int8_t());
    case DataType::kInt16:
      return run(int16_t());
    case DataType::kInt32:
      return run(int32_t());
    case DataType::kInt64:
      return run(int64_t());
    case DataType::kBool:  // a byte of 0 or 1
    case DataType::kUInt8:
      return run(uint8_t());
    case DataType::kUInt16:
      return run(uint16_t());
    case DataType::kUInt32:
      return run(uint32_t());
    case DataType::kUInt64:
      return run(uint64_t());
    case DataType::kComplex64:
      return run(std::complex<float>());
    case DataType::kComplex128:
      return run(std::complex<double>());
  }
}

}  // namespace

void Reduce(const Reduction& reduction, const void* const* sources, void* out, int64_t count) {
  WithType(reduction.dtype,
           [&](auto type) { ReduceTyped(reduction, sources, static_cast<decltype(type)*>(out), count); });
}

void ReducePartly(const Reduction& reduction, const void* const* sources, void* out, int64_t count) {
  WithType(reduction.dtype, [&](auto type) {
    using T = decltype(type);
    ForBlocks(count, [&](int64_t start, int64_t length) {
      Accumulate<T>(reduction, sources, start, length, static_cast<AccumulatorOf<T>*>(out) + start);
    });
  });
}

void FinishReduction(const Reduction& reduction, void* values, void* out, int64_t count) {
  WithType(reduction.dtype, [&](auto type) {
    using T = decltype(type);
    ForBlocks(count, [&](int64_t start, int64_t length) {
      FinishBlock(reduction, static_cast<AccumulatorOf<T>*>(values) + start, static_cast<T*>(out) + start,
                  length);
    });
  });
}

constexpr ReduceLoops kLoops{Reduce, ReducePartly, FinishReduction};
