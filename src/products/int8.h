// Products of bytes: y = x Wᵀ and dx = dy W over rounded operands, whose sums within a group of
// columns are exact integers. x and dy have a scale for every kInt8Group columns of a token, so
// that an outlier coarsens its group alone; W has one for each row (dynamic, symmetric: Xiao et al.
// 2022, "SmoothQuant", section 2). x and W are rounded to nearest, dy stochastically, so that dx is
// unbiased for the weight as it is rounded. dW, and the product of a single token, stay in f32.
#pragma once

#include "products/product.h"

namespace jackscrew {

// x and dy keep 8 bits, or 7 where Ops::int8_limit() says so; W keeps 8.
std::unique_ptr<const Product> make_int8_product();

}  // namespace jackscrew
