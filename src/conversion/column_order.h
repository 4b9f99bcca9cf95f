// What every rounding of a matrix column by column needs, whatever the file layout.
#pragma once

#include <vector>

#include "kernels/ops.h"

namespace jackscrew {

enum class Reorder : bool { forth, back };

// Permutes the columns of w, f32 [rows, cols], contiguous, in place: forth, column order[i] moves
// to i; back undoes that. An empty order leaves them.
void reorder_columns(Ops& ops, const Tensor& w, const std::vector<int32_t>& order, Reorder way);

// The cost of a squared error in each column once the columns after it have compensated for it, 1 /
// U_kk²; all 1 where there is no U.
std::vector<float> column_costs(const Tensor& u, int64_t cols);

// The columns after a block [begin, end) make up for what was rounded in it: w[:, end:] += errors ×
// U[begin:end, end:] (GPTQ, Frantar et al. 2022, section 3.3, step 2). `errors` is f32 [rows, at
// least end - begin], (rounded - w) / U_kk of each column.
void propagate_errors(Ops& ops, const Tensor& errors, const Tensor& u, const Tensor& w,
                      int64_t begin, int64_t end);

}  // namespace jackscrew
