// Sums of the squares of f32 tensors, in fixed chunks and in double, so that the bits do not depend
// on threads.
#pragma once

#include <cmath>

#include "kernels/context.h"

namespace jackscrew {

// The number of chunks of a tensor of so many elements.
int64_t chunks_of_squares(int64_t size);

// Writes the sum of the squares of each chunk of `values`, contiguous, to `sums`, f64 [chunks].
void sum_squares(Ops& ops, const Tensor& values, const Tensor& sums);

// The sum of the squares of a contiguous tensor, with 8 bytes of context.scratch for every chunk; 0
// on the plan device.
double squared_norm(Context& context, const Tensor& values);

// Whether no value of a contiguous tensor is NaN or infinite: the squares of f32 values, the
// largest included, do not overflow a double.
inline bool all_finite(Context& context, const Tensor& values) {
  return std::isfinite(squared_norm(context, values));
}

}  // namespace jackscrew
