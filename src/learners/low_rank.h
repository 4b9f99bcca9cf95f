// Low-rank approximation of a matrix by the product of two thin factors.
#pragma once

#include "kernels/context.h"

namespace jackscrew {

// The factors of an adapter: scale * b a.
struct LoraFactors {
  Tensor a;  // f32 [rank, in]
  Tensor b;  // f32 [out, rank]
  double scale;
};

// Writes factors.a and factors.b so that scale * b a approximates `matrix`, f32 [out, in], by its
// first singular vectors, with the root of each singular value in either factor. rank is at most
// out and in. Returns the squared norm that the approximation captures, at least 0.97 of what the
// best one of that rank does. Uses subspace iteration (Halko, Martinsson, Tropp 2011, algorithm
// 4.4) from a random start drawn by `seed` and `tensor`. A matrix of zeros leaves random rows in a
// and zeros in b. Throws Error(non_finite) for values that are not finite.
double approximate(Context& context, const Tensor& matrix, uint64_t seed, uint32_t tensor,
                   const LoraFactors& factors);

// What it takes of the host's memory at most, in no ledger, for a matrix [rows, cols].
int64_t approximate_host_bytes(int64_t rows, int64_t cols, int64_t rank);

}  // namespace jackscrew
