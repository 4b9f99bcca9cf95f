// Gradients for int8 products: dy quantised for dx and for dW. Both are rounded stochastically,
// each with random numbers of its own (Philox, keyed by the weight's name), so that dx and dW are
// unbiased given the other operand as rounded.
#pragma once

#include "products/gradient.h"

namespace jackscrew {

// Allocates i8 [rows, cols] with scales f32 [rows, groups of kInt8Group columns] in the arena,
// without values.
Int8Rows take_groups(Arena& scratch, int64_t rows, int64_t cols);

// Quantises columns [begin, end) of g.dy, f32, as [tokens, end - begin], times column_scales [end -
// begin], the scales of the weight's rows, which lie along the contraction. `begin` is a multiple
// of kInt8Group. Codes are in [-limit, limit]. The result lies in the scratch of g.context(), whose
// frame the caller holds.
Int8Rows gradient_of_rows(const Gradient& g, const Tensor& column_scales, int64_t begin,
                          int64_t end, int32_t limit);

// Quantises g.dy, f32, transposed: [out, tokens], each token times token_scales [tokens, ...] (its
// first column; empty: 1), which lie along the contraction of dW. Otherwise as above.
Int8Rows gradient_of_columns(const Gradient& g, const Tensor& token_scales, int32_t limit);

// Quantises x [tokens, in], f32, with a scale for each column, [in], as the second operand of dW:
// rounded to nearest, otherwise as above.
Int8Rows columns_in_bytes(const Context& context, const Tensor& x);

}  // namespace jackscrew
