// The storage formats of weights in 8-bit floats (E4M3, decoded in fp8.rows.h) with one scale per
// block of a grid, as compressed-tensors and Hugging Face's quant_method fp8 have them:
//   value = scale * number, rounded to the type of the scales
// The parts of a matrix, each at the next multiple of 64 bytes, as files have them:
//   codes   u8 [rows, cols]
//   scales  f16, bf16 or f32 [ceil(rows / block_rows), ceil(cols / block_cols)]
#pragma once

#include "quant/packed.h"

namespace jackscrew {

struct Fp8Layout {
  PackedScale scale = PackedScale::f32;  // any but `squared`
  int64_t block_rows = 1;                // extents of the block that shares a scale
  int64_t block_cols = 1;
};

inline constexpr float kLargestE4m3 = 448.0f;

// Makes an instance for matrices of that layout. inspect shows it as fp8.
FormatPointer make_fp8_format(const Fp8Layout& layout);

}  // namespace jackscrew
