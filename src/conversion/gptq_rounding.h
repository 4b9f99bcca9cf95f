// GPTQ (Frantar et al. 2023): a matrix is rounded column by column, and what each column's rounding
// does to the outputs is made up for, as far as can be, by the columns after it.
#pragma once

#include "conversion/hessian.h"
#include "formats/gptq_writer.h"

namespace jackscrew {

// Throws Error(usage) for bits or groups that there are not.
void check_gptq_layout(const GptqLayout& layout);

// Rounds w, f32 [rows, cols], contiguous, whose columns stand in `order` (empty: their own), and
// which becomes what the codes stand for. `u` is InverseFactor's in the same order; an empty one
// rounds each number by itself, to the nearest. A group's scale is found when its first column is
// due, of the weights as they are by then: of 24 shares of the range that holds them all,
// the one with the least error, each column's weighted by what its error costs, 1 / U_kk². Throws
// Error(model) for a weight that f16 scales cannot reach, Error(non_finite) for one that is not
// finite. No bit depends on threads.
GptqMatrix round_gptq(Ops& ops, Memory& memory, const WeightSpec& weight, const Tensor& w,
                      const Tensor& u, const std::vector<int32_t>& order, const GptqLayout& layout);

}  // namespace jackscrew
