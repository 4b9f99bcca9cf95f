// Products in floating-point arithmetic: the weight is decoded to it a bounded panel at a time.
#pragma once

#include "products/product.h"

namespace jackscrew {

const Product& f32_product();   // all in f32
const Product& bf16_product();  // operands rounded to bf16, sums in f32

}  // namespace jackscrew
