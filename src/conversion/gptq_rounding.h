// GPTQ (Frantar et al. 2023): rounds a matrix column by column; the columns after each one
// compensate, as far as possible, for what its rounding does to the outputs.
#pragma once

#include "conversion/hessian.h"
#include "formats/gptq_writer.h"

namespace jackscrew {

// Throws Error(usage) for bits or group sizes that the layout does not have.
void check_gptq_layout(const GptqLayout& layout);

// Rounds w, f32 [rows, cols], contiguous, with its columns in `order` (empty: their own), and
// replaces it by the values of the codes. `u` is InverseFactor's in the same order; if it is empty,
// each number is rounded to nearest by itself. A group's scale is chosen when its first column is
// due, from the weights as they are by then: of 24 fractions of their range, the one with the least
// error, where the squared error of a column is weighted by its cost, 1 / U_kk². Throws
// Error(model) for a weight that f16 scales cannot reach, Error(non_finite) for one that is not
// finite. The result does not depend on threads.
GptqMatrix round_gptq(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                      const Tensor& u, const std::vector<int32_t>& order, const GptqLayout& layout);
// The bytes that round_gptq() books.
int64_t gptq_rounding_bytes(int64_t rows);
// The most bytes that round_gptq(), and gptq_tensors() of its result, hold in vectors.
int64_t gptq_held_bytes(const WeightSpec& weight, const GptqLayout& layout);

}  // namespace jackscrew
