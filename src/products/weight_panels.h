// Panels of a weight's rows in f32, for products that convert them to an arithmetic of their own.
#pragma once

#include <algorithm>

#include "kernels/context.h"
#include "quant/weight.h"

namespace jackscrew {

// The number of rows in a panel of about `bytes` with elements of `element` bytes: whole groups of
// kInt8Group, because panels of W are pieces of the contraction of dx.
inline int64_t panel_rows_of(const Weight& weight, int64_t bytes, int64_t element) {
  const int64_t rows = bytes / (weight.cols() * element) / kInt8Group * kInt8Group;
  return std::min(weight.rows(), std::max(kInt8Group, rows));
}

// Scratch for `rows` rows of a weight that is not stored as f32; else empty.
inline Tensor decoded_panel(const Context& context, const Weight& weight, int64_t rows) {
  if (!weight.as_f32().empty()) return {};
  return context.scratch.tensor(DType::f32, {rows, weight.cols()});
}

// Rows [begin, end) of a weight in f32; `decoded` is what decoded_panel() gave.
inline Tensor values_of(const Context& context, const Weight& weight, int64_t begin, int64_t end,
                        const Tensor& decoded) {
  if (decoded.empty()) return weight.as_f32().rows(begin, end);
  const Tensor rows = decoded.rows(0, end - begin);
  weight.decode(context.ops, begin, end, rows);
  return rows;
}

}  // namespace jackscrew
