// Low-rank approximation of a matrix by the product of two thin factors.
#pragma once

#include "kernels/context.h"

namespace jackscrew {

// Writes `a`, f32 [rank, cols], and `b`, f32 [rows, rank], so that scale * b a approximates
// `matrix`, f32 [rows, cols], by its first singular vectors, with the root of each singular value
// in either factor. rank is at most rows and cols. Returns the squared norm that the approximation
// captures, at least 0.97 of what the best one of that rank does. Uses subspace iteration (Halko,
// Martinsson, Tropp 2011, algorithm 4.4) from a random start drawn by `seed` and `tensor`. A matrix
// of zeros leaves random rows in `a` and zeros in `b`. Throws Error(non_finite) for values that are
// not finite.
double low_rank_factors(Context& context, const Tensor& matrix, double scale, uint64_t seed,
                        uint32_t tensor, const Tensor& a, const Tensor& b);

}  // namespace jackscrew
