// float16 and bfloat16 as bits, with conversions to and from float32 (round to nearest even). The conversions
// have no branches, so that the compiler can vectorise loops over them.
#pragma once

#include <cstdint>
#include <cstring>

namespace tfddl {

inline float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 value) { return BitsToFloat(static_cast<uint32_t>(value.bits) << 16); }

inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;  // rounding up could turn a NaN into infinity
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

inline float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  // A multiplication changes the exponent's bias, and is right for subnormal numbers too.
  const float scaled = BitsToFloat(magnitude) * BitsToFloat(0x77800000u);  // 2^112
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;    // infinity and NaN
  return BitsToFloat(FloatToBits(scaled) | special | sign);
}

inline Float16 ToFloat16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: re-bias the exponent and round the 13 dropped bits to nearest even.
  const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 rounds the value and leaves its bits in the low bits of the sum.
  const uint32_t subnormal = FloatToBits(BitsToFloat(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  return {static_cast<uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite))};
}

}  // namespace tfddl
