#include "core/arithmetic/reduce.h"

#include <algorithm>
#include <complex>
#include <functional>
#include <limits>
#include <type_traits>

#include "core/arithmetic/arithmetic.h"

namespace tfddl {

namespace baseline {
#include "core/arithmetic/reduce_loops.h"
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TFDDL_WIDE_LOOPS

#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include "core/arithmetic/reduce_loops.h"
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
#include "core/arithmetic/reduce_loops.h"
}
#pragma GCC pop_options

#endif

std::vector<ReduceLoops> ReduceLoopsHere() {
  std::vector<ReduceLoops> loops{baseline::kLoops};
#ifdef TFDDL_WIDE_LOOPS
  if (__builtin_cpu_supports("avx2")) loops.push_back(avx2::kLoops);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    loops.push_back(avx512::kLoops);
  }
#endif
  return loops;
}

namespace {

const ReduceLoops& Best() {
  static const ReduceLoops best = ReduceLoopsHere().back();
  return best;
}

}  // namespace

void Reduce(const Reduction& reduction, const void* const* sources, void* out, int64_t count) {
  Best().reduce(reduction, sources, out, count);
}

void ReducePartly(const Reduction& reduction, const void* const* sources, void* out, int64_t count) {
  Best().partly(reduction, sources, out, count);
}

void FinishReduction(const Reduction& reduction, void* values, void* out, int64_t count) {
  Best().finish(reduction, values, out, count);
}

DataType AccumulatorType(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return DataType::kFloat32;
    case DataType::kInt8:
    case DataType::kInt16:
      return DataType::kInt32;
    case DataType::kInt32:
      return DataType::kInt64;
    case DataType::kBool:
    case DataType::kUInt8:
    case DataType::kUInt16:
      return DataType::kUInt32;
    case DataType::kUInt32:
      return DataType::kUInt64;
    default:
      return dtype;
  }
}

}  // namespace tfddl
