// 4-bit products: y = x Wᵀ, dx = dy W and dW = dyᵀ x over operands that are rounded after a
// Hadamard transform of blocks along the contraction of y (Xi et al. 2023, "Training Transformers
// with 4-bit Integers", section 3.2). Codes are multiplied as int8 (Ops::gemm_int8).
//
// Unlike theirs, steps are not learned: a step is 0.335 times the root mean square of a row of W or
// of a token of x, the best with sixteen even levels for normal numbers. And dy is neither split
// into high and low bits nor sampled: it is rounded once for dx and once for dW, stochastically, to
// [-7, 7] with a scale for every kInt8Group of the contraction, which leaves no bias and a smaller
// error. Scales of W and x that lie along a contraction are folded into dy before it is rounded.
// The gradient is that of the rounded product, with rounding taken for the identity
// (straight-through) and steps for constants: 0 where a number was clipped.
//
// A single token, and add_left and add_right, which multiply by thin matrices, are computed in f32
// from numbers that are not rounded. The head is multiplied by the product int8.
//
// int4_paper.h has the paper's own method.
#pragma once

#include "products/product.h"

namespace jackscrew {

struct Int4Options {
  const char* name;  // a literal
  // x and dy get as many bits as in the product int8, not four; then no x is clipped.
  bool wide = false;
  // The block of the transform, a power of two up to 128 that divides the width of every weight; 0:
  // the largest that divides it.
  int64_t block = 0;
};

std::unique_ptr<const Product> make_int4_product(const Int4Options& options);

// Throws Error(usage) where `block`, the option that begins with the product's name, is not 0 and
// does not divide the width of one of the weights. `most` is the largest block where the option is
// auto; `excluded`: see Product::check().
void check_hadamard_block(const char* product, int64_t block, int64_t most,
                          std::span<const WeightSpec> weights, std::vector<std::string> excluded);

// The rows of the table of products (int4_options.cc): `int4`, and `w4a8` with only W in four bits.
ProductEntry int4_entry();
ProductEntry w4a8_entry();

}  // namespace jackscrew
