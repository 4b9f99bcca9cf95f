// Gradients in bytes, for the products of bytes: dy on its way into dx and into dW. Both are
// rounded stochastically, each with random numbers of its own (Philox, keyed by the weight's name),
// so that dx and dW are unbiased for the other operand as it is rounded.
#pragma once

#include "products/gradient.h"

namespace jackscrew {

// i8 [rows, cols] with f32 [rows, groups of kInt8Group columns], from the arena, with no values
// yet.
Int8Rows take_groups(Arena& scratch, int64_t rows, int64_t cols);

// Columns [begin, end) of g.dy, f32, as [tokens, end - begin], times column_scales [end - begin],
// the scales of the weight's rows, which lie along the contraction. `begin` is a whole number of
// groups. Codes are in [-limit, limit]. Lies in the scratch of g.context(), whose frame the caller
// holds.
Int8Rows gradient_of_rows(const Gradient& g, const Tensor& column_scales, int64_t begin,
                          int64_t end, int32_t limit);

// g.dy, f32, transposed: [out, tokens], each token times token_scales [tokens, ...] (its first
// column; empty: 1), which lie along the contraction of dW. As above.
Int8Rows gradient_of_columns(const Gradient& g, const Tensor& token_scales, int32_t limit);

// x [tokens, in], f32, with a scale for each column, [in], to be the second operand of dW. As
// above, to nearest.
Int8Rows columns_in_bytes(const Context& context, const Tensor& x);

}  // namespace jackscrew
