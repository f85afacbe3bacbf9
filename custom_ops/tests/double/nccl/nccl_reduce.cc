#include "tests/double/nccl/nccl_reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/arithmetic/half.h"
#include "tests/double/nccl/nccl_abi.h"

namespace fake {
namespace {

using tfddl::BFloat16;
using tfddl::Float16;

template <typename T>
struct Arithmetic {
  using Wide = T;
  static Wide Load(T value) { return value; }
  static T Store(Wide value) { return value; }
};

template <>
struct Arithmetic<Float16> {
  using Wide = float;
  static float Load(Float16 value) { return tfddl::ToFloat(value); }
  static Float16 Store(float value) { return tfddl::ToFloat16(value); }
};

template <>
struct Arithmetic<BFloat16> {
  using Wide = float;
  static float Load(BFloat16 value) { return tfddl::ToFloat(value); }
  static BFloat16 Store(float value) { return tfddl::ToBFloat16(value); }
};

// Integers wrap around, as on a GPU.
template <typename W>
W Add(W a, W b) {
  if constexpr (std::is_integral_v<W>)
    return static_cast<W>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}
template <typename W>
W Multiply(W a, W b) {
  if constexpr (std::is_integral_v<W>)
    return static_cast<W>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}

template <typename W>
W Combine(W a, W b, int op) {
  switch (op) {
    case ncclProd:
      return Multiply(a, b);
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return Add(a, b);
  }
}

template <typename T>
void ReduceAs(void* out, const char* const* in, int ranks, size_t n, int op, uint64_t factor_bits) {
  using Wide = typename Arithmetic<T>::Wide;
  T factor;
  std::memcpy(&factor, &factor_bits, sizeof factor);
  Wide scale = Arithmetic<T>::Load(factor);
  bool scaled = op == kPreMulSum;
  // As in NCCL: floats are multiplied by 1/n before the sum, integers divided by n after it.
  if (op == ncclAvg && !std::is_integral_v<Wide>) {
    scale = Wide(1) / static_cast<Wide>(ranks);
    scaled = true;
  }
  for (size_t i = 0; i < n; ++i) {
    Wide sum{};
    for (int rank = 0; rank < ranks; ++rank) {
      T element;
      std::memcpy(&element, in[rank] + i * sizeof(T), sizeof element);
      Wide value = Arithmetic<T>::Load(element);
      if (scaled) value = Multiply(value, scale);
      sum = rank ? Combine(sum, value, op) : value;
    }
    if (op == ncclAvg && std::is_integral_v<Wide>) sum = static_cast<Wide>(sum / static_cast<Wide>(ranks));
    static_cast<T*>(out)[i] = Arithmetic<T>::Store(sum);
  }
}

}  // namespace

size_t SizeOfType(int type) {
  constexpr size_t kSizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[type];
}

const char* NameOfType(int type) {
  constexpr const char* kNames[ncclNumTypes] = {"int8",   "uint8",    "int32",      "uint32",
                                                "int64",  "uint64",   "half",       "float",
                                                "double", "bfloat16", "float8e4m3", "float8e5m2"};
  return kNames[type];
}

const char* NameOfOp(int op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg", "premulsum"};
  return kNames[op];
}

void Reduce(void* out, const char* const* in, int ranks, size_t n, int type, int op, uint64_t factor) {
  switch (type) {
    case ncclInt8:
      return ReduceAs<int8_t>(out, in, ranks, n, op, factor);
    case ncclUint8:
      return ReduceAs<uint8_t>(out, in, ranks, n, op, factor);
    case ncclInt32:
      return ReduceAs<int32_t>(out, in, ranks, n, op, factor);
    case ncclUint32:
      return ReduceAs<uint32_t>(out, in, ranks, n, op, factor);
    case ncclInt64:
      return ReduceAs<int64_t>(out, in, ranks, n, op, factor);
    case ncclUint64:
      return ReduceAs<uint64_t>(out, in, ranks, n, op, factor);
    case ncclFloat16:
      return ReduceAs<Float16>(out, in, ranks, n, op, factor);
    case ncclFloat32:
      return ReduceAs<float>(out, in, ranks, n, op, factor);
    case ncclFloat64:
      return ReduceAs<double>(out, in, ranks, n, op, factor);
    case ncclBfloat16:
      return ReduceAs<BFloat16>(out, in, ranks, n, op, factor);
  }
}

}  // namespace fake
