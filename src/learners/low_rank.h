// The best product of two thin factors for a matrix.
#pragma once

#include "kernels/context.h"

namespace jackscrew {

// The sum of the squares of a contiguous f32 tensor; 0 on the plan device.
double squared_norm(Context& context, const Tensor& values);

// to += factor * from, both f32, contiguous and of one size.
void add_scaled(Context& context, const Tensor& to, const Tensor& from, double factor);

// Writes `a`, f32 [rank, cols], and `b`, f32 [rows, rank], so that scale * b a is as near to
// `matrix`, f32 [rows, cols], as a product of that rank can be: its first singular vectors, the
// root of each singular value in either factor. rank is at most rows and cols. Returns the square
// of what the product has of the matrix, at least 0.97 of what the exact one has. By subspace
// iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4); `tensor` says which random start.
// A matrix of zeros leaves random rows in `a` and zeros in `b`. Throws Error(non_finite) for values
// that are not finite.
double low_rank_factors(Context& context, const Tensor& matrix, double scale, uint64_t seed,
                        uint32_t tensor, const Tensor& a, const Tensor& b);

}  // namespace jackscrew
