// Products in bytes: y = x Wᵀ and dx = dy W are exact integer sums of rounded operands. Every row
// of an operand is scaled by its largest magnitude (dynamic, symmetric, per token and per output
// channel: Xiao et al. 2022, "SmoothQuant", section 2). x and W are rounded to nearest, dy
// stochastically, so that dx is unbiased for the weight as it is rounded; dW stays in f32.
#pragma once

#include "products/product.h"

namespace jackscrew {

// x and dy keep 8 bits, or 7 where Ops::int8_limit() says so; W keeps 8.
const Product& int8_product();

}  // namespace jackscrew
