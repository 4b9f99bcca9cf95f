// Moments of gradients whose basis changes. With g' = g C the first moment of g' is M C exactly.
// The second is known up to the correlations between coordinates, which V does not have: V (C ∘ C)
// takes them as 0. Either way signs and order of the new coordinates do not matter.
#pragma once

#include "kernels/context.h"

namespace jackscrew {

enum class Moment { first, second };

// Returns the rotated moment for a moment f32 [rows, n] and C = basis_change, f32 [n, n]: M C, or V
// (C ∘ C) plus a thousandth of the mean of the row. C may shorten g, if coordinates of the new
// basis lie outside the old; the mean then keeps a later gradient from being divided by almost
// nothing. The result is f32 [rows, n] in context.scratch, whose frame the caller holds.
Tensor rotated_moment(Context& context, const Tensor& moment, const Tensor& basis_change,
                      Moment order);

}  // namespace jackscrew
