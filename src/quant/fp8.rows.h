// The row kernels of weights in 8-bit floats; the layout is in fp8.h.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "quant/scale_rounding.h"

namespace jackscrew {

// Decodes E4M3 (Micikevicius et al., arXiv 2209.05433, table 1): a sign, four bits of exponent,
// three of mantissa. There is no infinity, and one NaN of either sign.
JACKSCREW_ROW float e4m3_number(int32_t code) {
  const int32_t magnitude = code & 0x7F;
  const float normal = bits_float(static_cast<uint32_t>(magnitude + 0x3C0) << 20);
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  const float finite = magnitude < 8 ? subnormal : normal;
  const float number = magnitude == 0x7F ? __builtin_nanf("") : finite;
  return bits_float(float_bits(number) | static_cast<uint32_t>(code & 0x80) << 24);
}

// A matrix: the parts of fp8.h.
template <class Scale>
struct Fp8Matrix {
  const uint8_t* codes;                  // [rows, cols]
  const typename Scale::Stored* scales;  // [ceil(rows / block_rows), scale_cols]
  int64_t cols, block_rows, block_cols, scale_cols;

  JACKSCREW_ROW float scale(int64_t row, int64_t block) const {
    return to_float(scales[row / block_rows * scale_cols + block]);
  }
  JACKSCREW_ROW static float value(float scale, int32_t code) {
    return Scale::rounded(scale * e4m3_number(code));
  }
  // Calls f(block, first column, column count) for each block along a row.
  template <class F>
  JACKSCREW_ROW void each_block(const F& f) const {
    for (int64_t block = 0; block < scale_cols; ++block) {
      const int64_t first = block * block_cols;
      f(block, first, cols - first < block_cols ? cols - first : block_cols);
    }
  }
};

template <class Scale>
struct DecodeFp8 {
  static constexpr bool kShortLoops = true;
  Fp8Matrix<Scale> matrix;
  const int32_t* indices;  // row list; null: rows first_row, first_row + 1, ...
  void* out;               // [rows, out_stride] f32, or bf16
  int64_t first_row;
  int64_t out_stride;  // elements
  bool out_bf16;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t source = indices != nullptr ? indices[row] : first_row + row;
    if (out_bf16) {
      write(team, source, static_cast<bf16*>(out) + row * out_stride);
    } else {
      write(team, source, static_cast<float*>(out) + row * out_stride);
    }
  }

 private:
  template <class Team, class To>
  JACKSCREW_ROW void write(const Team& team, int64_t source, To* to) const {
    const uint8_t* of_row = matrix.codes + source * matrix.cols;
    matrix.each_block([&](int64_t block, int64_t first, int64_t count) {
      const float s = matrix.scale(source, block);
      team.each_byte(of_row + first, count, [=](int64_t i, int32_t code) {
        to[first + i] = from_float<To>(Fp8Matrix<Scale>::value(s, code));
      });
    });
  }
};

// y[row] = sum of x times row `row` of a matrix: the product of a single token.
template <class Scale>
struct DotFp8 {
  static constexpr bool kShortLoops = true;
  Fp8Matrix<Scale> matrix;
  const float* x;  // [cols]
  float* y;        // [rows]
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const uint8_t* of_row = matrix.codes + row * matrix.cols;
    float total = 0.0f;
    matrix.each_block([&](int64_t block, int64_t first, int64_t count) {
      const float s = matrix.scale(row, block);
      total += team.sum_bytes(of_row + first, count, [&](int64_t i, int32_t code) {
        return x[first + i] * Fp8Matrix<Scale>::value(s, code);
      });
    });
    team.once([&] { y[row] = accumulate ? y[row] + total : total; });
  }
};

using DecodeFp8F16 = DecodeFp8<F16Scale>;
using DecodeFp8Bf16 = DecodeFp8<Bf16Scale>;
using DecodeFp8F32 = DecodeFp8<F32Scale>;
using DotFp8F16 = DotFp8<F16Scale>;
using DotFp8Bf16 = DotFp8<Bf16Scale>;
using DotFp8F32 = DotFp8<F32Scale>;
JACKSCREW_ROW_KERNEL(DecodeFp8F16)
JACKSCREW_ROW_KERNEL(DecodeFp8Bf16)
JACKSCREW_ROW_KERNEL(DecodeFp8F32)
JACKSCREW_ROW_KERNEL(DotFp8F16)
JACKSCREW_ROW_KERNEL(DotFp8Bf16)
JACKSCREW_ROW_KERNEL(DotFp8F32)

}  // namespace jackscrew
