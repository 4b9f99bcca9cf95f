// Rounds products of a scale and a number to the type of the scales, in the row kernels of formats
// that other programs have quantised.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

JACKSCREW_ROW float with_sign_of(float value, float rounded) {
  return bits_float(float_bits(rounded) | (float_bits(value) & 0x80000000u));
}

// Rounds to the 11 significant bits of f16, ties to even, by adding and subtracting a number whose
// last place is the one to round to (2^-24 below 2^-14). Values are below 65520: file readers have
// checked that. A product passed as `value` may be fused with the sum, because it is exact.
JACKSCREW_ROW float round_to_f16(float value) {
  const uint32_t exponent = float_bits(value) & 0x7F800000u;
  const float power = row_max(bits_float(exponent), 0x1p-14f);
  const float magic = power * 12288.0f;  // 1.5 * 2^13
  return with_sign_of(value, (value + magic) - magic);
}
// To 8 significant bits, as bf16 has them. Below 2^-126 the last place is 2^-133.
JACKSCREW_ROW float round_to_bf16(float value) {
  const float power = row_max(bits_float(float_bits(value) & 0x7F800000u), 0x1p-126f);
  const float magic = power * 98304.0f;  // 1.5 * 2^16
  return with_sign_of(value, (value + magic) - magic);
}

// How scales are stored, and what products with them are rounded to; kCoarse: to fewer than f16's
// bits.
struct F16Scale {
  static constexpr bool kSquared = false;
  static constexpr bool kCoarse = false;
  using Stored = f16;
  JACKSCREW_ROW static float rounded(float value) { return round_to_f16(value); }
};
struct Bf16Scale {
  static constexpr bool kSquared = false;
  static constexpr bool kCoarse = true;
  using Stored = bf16;
  JACKSCREW_ROW static float rounded(float value) { return round_to_bf16(value); }
};
struct F32Scale {
  static constexpr bool kSquared = false;
  static constexpr bool kCoarse = false;
  using Stored = float;
  JACKSCREW_ROW static float rounded(float value) { return value; }
};
struct SquaredScale {
  static constexpr bool kSquared = true;
  static constexpr bool kCoarse = false;
  using Stored = f16;
  JACKSCREW_ROW static float rounded(float value) { return round_to_f16(value); }
};

}  // namespace jackscrew
