// Floating-point storage: f32, bf16, f16.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& f32_format();
const Format& bf16_format();
const Format& f16_format();

// Converts f32 rows to bf16 (to nearest): operands of the bf16 product. Any row strides.
void convert_to_bf16(Ops& ops, const Tensor& from, const Tensor& to);
// Converts bf16 rows to f32. Any row strides.
void convert_to_f32(Ops& ops, const Tensor& from, const Tensor& to);

}  // namespace jackscrew
