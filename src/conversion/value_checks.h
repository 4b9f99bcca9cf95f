// Checks of values that are to be rounded to codes, or were.
#pragma once

#include "quant/small_values.h"
#include "quant/weight_spec.h"
#include "tensor/tensor.h"

namespace jackscrew {

// Whether all values of w, f32 and contiguous, are finite.
bool all_finite(const Tensor& w);
// Throws Error(non_finite) where a value is not finite.
void check_finite(const WeightSpec& weight, const Tensor& w);

// Throws Error(model): f16 cannot represent the values of a weight.
[[noreturn]] void fail_beyond_f16(const WeightSpec& weight, const char* layout);
// Throws Error(model): the values of a weight, of at most that magnitude, are lost in scales of
// f16.
[[noreturn]] void fail_below_f16(const WeightSpec& weight, float largest);

}  // namespace jackscrew
