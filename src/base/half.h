// 16-bit floating-point types as plain bits, with exact conversions that compilers can vectorise.
// Included by row kernels: see inline.h.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace jackscrew {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};
inline constexpr float kLargestF16 = 65504.0f;

JACKSCREW_INLINE uint32_t float_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

JACKSCREW_INLINE float bits_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

JACKSCREW_INLINE float to_float(float value) {
  return value;
}

JACKSCREW_INLINE float to_float(bf16 value) {
  return bits_float(static_cast<uint32_t>(value.bits) << 16);
}

// Subnormals are exact: the exponent is rebiased by a multiplication, which normalises them.
JACKSCREW_INLINE float to_float(f16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7FFFu) << 13;
  const float scaled = bits_float(magnitude) * 5.192296858534828e+33f;  // 2^112
  const uint32_t finite = float_bits(scaled);
  const uint32_t special = magnitude | 0x7F800000u;  // infinity or NaN keeps its mantissa
  return bits_float(sign | (magnitude >= 0x0F800000u ? special : finite));
}

// Round to nearest, ties to even; NaN stays NaN.
JACKSCREW_INLINE bf16 to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return bf16{static_cast<uint16_t>(is_nan ? nan : rounded)};
}

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
JACKSCREW_INLINE f16 to_f16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Below 2^-14 the result is subnormal: adding 0.5 aligns the mantissa and the FPU rounds it.
  const uint32_t small = float_bits(bits_float(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x477FF000u ? 0x7C00u : result;
  result = magnitude > 0x7F800000u ? 0x7E00u : result;
  return f16{static_cast<uint16_t>(sign | result)};
}

// The nearest value of the type To.
template <class To>
JACKSCREW_INLINE To from_float(float value);
template <>
JACKSCREW_INLINE float from_float<float>(float value) {
  return value;
}
template <>
JACKSCREW_INLINE bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}
template <>
JACKSCREW_INLINE f16 from_float<f16>(float value) {
  return to_f16(value);
}

}  // namespace jackscrew
