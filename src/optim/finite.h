// Checks on the device whether values are finite.
#pragma once

#include "kernels/context.h"

namespace jackscrew {

// Whether no value (f32, contiguous) is NaN or infinite. Uses 8 bytes of context.scratch for every
// 16384 values.
bool all_finite(Context& context, const Tensor& values);

}  // namespace jackscrew
