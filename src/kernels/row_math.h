// Arithmetic for row kernels: force-inlined, branch-free, the same formula on every target.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/row_kernel.h"

namespace jackscrew {

// Bounds quotients whose divisor may be subnormal: times 0, infinity would be NaN.
inline constexpr float kLargestFloat = 3.4028235e38f;

JACKSCREW_ROW float row_min(float a, float b) {
  return a < b ? a : b;
}
JACKSCREW_ROW float row_max(float a, float b) {
  return a > b ? a : b;
}

// e^x to about 1 ulp: 2^n * p(r) with x = n ln 2 + r, |r| <= ln 2 / 2, and the degree-6 polynomial
// of Cephes expf. Saturates to 0 below -87.3 and to nearly the largest float above 88.7. NaN stays
// NaN: the order of the operands of row_min and row_max decides that.
JACKSCREW_ROW float row_exp(float x) {
  const float clamped = row_min(88.72f, row_max(-87.33f, x));
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = static_cast<int32_t>(float_bits(shifted) & 0x7FFFFFu) - 0x400000;
  // 2^n in two factors, so that n = 128 does not overflow before the product is formed.
  const int32_t half = exponent >> 1;
  const float scale_a = bits_float(static_cast<uint32_t>(half + 127) << 23);
  const float scale_b = bits_float(static_cast<uint32_t>(exponent - half + 127) << 23);
  const float result = p * scale_a * scale_b;
  return x < -87.33f ? 0.0f : result;
}

// The natural logarithm of a normal, positive x, to about 1 ulp: x = m * 2^e with m from sqrt(1/2)
// to sqrt(2), and the polynomial of Cephes logf.
JACKSCREW_ROW float row_log(float x) {
  const uint32_t bits = float_bits(x);
  const float half = bits_float((bits & 0x7FFFFFu) | 0x3F000000u);  // [1/2, 1)
  const bool low = half < 0.707106781f;
  const float e = static_cast<float>(static_cast<int32_t>(bits >> 23) - 126) - (low ? 1.0f : 0.0f);
  const float m = (low ? half + half : half) - 1.0f;
  const float square = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float rest = p * m * square - 2.12194440e-4f * e - 0.5f * square;
  return m + rest + 0.693359375f * e;
}

// The cosine of `turns` whole turns, from 0 to 1, within 1e-6: as the sine of the distance to the
// nearest zero, a quarter of a turn at most, by its series to the eleventh power.
JACKSCREW_ROW float row_cos_of_turns(float turns) {
  const float from_half = __builtin_fabsf(turns - 0.5f);
  const float x = 6.2831853f * (from_half - 0.25f);
  const float square = x * x;
  float p = -2.5052108385e-8f;
  p = p * square + 2.7557319224e-6f;
  p = p * square - 1.9841269841e-4f;
  p = p * square + 8.3333333333e-3f;
  p = p * square - 1.6666666667e-1f;
  return x + x * square * p;
}

JACKSCREW_ROW float row_sigmoid(float x) {
  return 1.0f / (1.0f + row_exp(-x));
}

}  // namespace jackscrew
