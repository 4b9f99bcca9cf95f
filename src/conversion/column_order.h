// What rounding a matrix column by column needs, whatever the files.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "quant/weight_spec.h"

namespace jackscrew {

inline constexpr float kLargestF16 = 65504.0f;

enum class Reorder : bool { forth, back };

// The columns of w, f32 [rows, cols], contiguous, in the given order (column i becomes what column
// order[i] was), or back. An empty order leaves them.
void reorder_columns(Ops& ops, const Tensor& w, const std::vector<int32_t>& order, Reorder way);

// What a squared miss in each column costs once those behind have made up for it, 1 / U_kk²; all
// the same where there is no U.
std::vector<float> column_costs(const Tensor& u, int64_t cols);

// Throws Error(non_finite) where a value is not.
void check_finite(const WeightSpec& weight, const Tensor& w);

// That f16 cannot have the values of a weight.
[[noreturn]] void fail_beyond_f16(const WeightSpec& weight, const char* layout);

}  // namespace jackscrew
