// Int8 products: y = x Wᵀ and dx = dy W over rounded operands, whose sums within a group of columns
// are exact integers. x and dy have a scale for every kInt8Group columns of a token, so that an
// outlier coarsens only its group; W has one for each row (dynamic, symmetric: Xiao et al. 2022,
// "SmoothQuant", section 2). x and W are rounded to nearest, dy stochastically, so that dx is
// unbiased given the rounded weight. A single token is multiplied in f32.
//
// dW stays in f32 too unless options say otherwise. In int8 it has a scale for every kInt8Group
// tokens of a column of dy, and one for each column of x over all tokens of the micro-batch: on
// SmolLM2 its error is then dy's rounding alone, 1 to 2.5 % (with 7 bits twice that), where one
// scale for a whole column of dy would make it two to five times as large.
#pragma once

#include "products/product.h"

namespace jackscrew {

struct Int8Options {
  bool weight_gradient = false;  // dW in int8 as well
};

// x and dy keep 8 bits, or 7 where Ops::int8_limit() says so; W keeps 8, and so does x in dW.
std::unique_ptr<const Product> make_int8_product(const Int8Options& options = {});

// The row of the table of products.
ProductEntry int8_entry();

}  // namespace jackscrew
