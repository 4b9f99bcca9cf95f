// Checks of values that are to be rounded to codes, or were.
#pragma once

#include "quant/weight_spec.h"
#include "tensor/tensor.h"

namespace jackscrew {

// Whether all values of w, f32 and contiguous, are finite.
bool all_finite(const Tensor& w);
// Throws Error(non_finite) where a value is not finite.
void check_finite(const WeightSpec& weight, const Tensor& w);

// A matrix that has such a value is not lost in f16.
inline constexpr float kSafeInF16 = 0x1p-16f;
// Whether f16, as numbers or as scales of blocks, may lose a matrix of this largest magnitude. Its
// steps are 2^-24; q8_0 makes 0 of a block that lies below 64 of them (2^-18). Up to 2^-40 a matrix
// is 0 to the model, too, whose norms raise values by a thousand times at most.
constexpr bool may_vanish(float largest) {
  return largest > 0x1p-40f && largest < kSafeInF16;
}
// Such a matrix is lost where rounding takes more than this share of the sum of its squares.
inline constexpr double kVanished = 0.5;

// Throws Error(model): f16 cannot represent the values of a weight.
[[noreturn]] void fail_beyond_f16(const WeightSpec& weight, const char* layout);
// Throws Error(model): the values of a weight, of at most that magnitude, are lost in scales of
// f16.
[[noreturn]] void fail_below_f16(const WeightSpec& weight, float largest);

}  // namespace jackscrew
