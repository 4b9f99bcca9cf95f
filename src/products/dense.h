// Products in floating-point arithmetic: the weight is decoded a bounded panel at a time.
#pragma once

#include "products/product.h"

namespace jackscrew {

std::unique_ptr<const Product> make_f32_product();   // all in f32
std::unique_ptr<const Product> make_bf16_product();  // operands rounded to bf16, sums in f32

// The product that others use for what they leave to f32.
const Product& f32_product();

}  // namespace jackscrew
