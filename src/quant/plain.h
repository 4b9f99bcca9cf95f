// Floating-point storage: f32, bf16, f16.
#pragma once

#include "kernels/context.h"
#include "quant/format.h"

namespace jackscrew {

const Format& f32_format();
const Format& bf16_format();
const Format& f16_format();

// Converts f32 rows to bf16, rounding to nearest. Any row strides.
void convert_to_bf16(Ops& ops, const Tensor& from, const Tensor& to);
// Converts bf16 rows to f32. Any row strides.
void convert_to_f32(Ops& ops, const Tensor& from, const Tensor& to);
// x as `dtype`, both f32 or bf16: x itself if it has that type, else a copy in context.scratch.
Tensor converted(Context& context, const Tensor& x, DType dtype);

}  // namespace jackscrew
