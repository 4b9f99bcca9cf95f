// Quantises rows of f32 to four bits, or to eight, after a Hadamard transform: blocks of a row are
// multiplied by an orthogonal matrix that spreads an outlier over its block (Xi et al. 2023,
// "Training Transformers with 4-bit Integers", section 3.2). Every kernel reads one
// tensor and writes one, as the transform is in registers.
#pragma once

#include "quant/hadamard_row.h"

namespace jackscrew {

// Quantises transformed rows, rounding to nearest. With four bits the step is kInt4Step times the
// root mean square of the row, and what is beyond the levels is clipped. Otherwise the largest
// magnitude becomes `limit`.
struct QuantizeRotated {
  static constexpr bool kShortLoops = true;
  const float* from;  // [rows, width], row stride from_stride
  int8_t* codes;      // [rows, width]
  float* scales;      // [rows, copies], the same one in all
  int64_t width, from_stride, block, copies;
  int64_t limit;  // 0: four bits
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* in = from + row * from_stride;
    const float shrink = orthonormal_factor(block);
    float step = 0.0f;
    float lowest = kInt4Lowest;
    float highest = kInt4Highest;
    if (limit == 0) {
      step = int4_step(team, in, width);
    } else {
      highest = static_cast<float>(limit);
      lowest = -highest;
      float largest = 0.0f;
      for_transformed(team, in, width, block, [&](int64_t, int64_t count, auto& values) {
        largest = team.max(count, largest,
                           [&](int64_t i) { return nan_to_infinity(__builtin_fabsf(values[i])); });
      });
      step = largest * shrink / highest;
    }
    float* to_scales = scales + row * copies;
    team.each(copies, [&](int64_t i) { to_scales[i] = step; });
    const float factor = inverse_step(step, shrink);
    int8_t* out = codes + row * width;
    for_transformed(team, in, width, block, [&](int64_t at, int64_t count, auto& values) {
      put_bytes(team, out + at, count, [&](int64_t i) {
        // In this order of operands NaN becomes the lowest code: the scale shows it.
        const float inside = row_min(row_max(values[i] * factor, lowest), highest);
        return static_cast<int32_t>(round_to_integer(inside));
      });
    });
  }
};
JACKSCREW_ROW_KERNEL(QuantizeRotated)

// Rows of int4_hadamard as QuantizeRotated would write them.
struct UnpackInt4 {
  static constexpr bool kShortLoops = true;
  const uint8_t* from;  // [rows, bytes], code + 8, the even element in the high nibble
  int8_t* to;           // [rows, 2 * bytes]
  int64_t bytes;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const uint8_t* in = from + row * bytes;
    int8_t* out = to + row * 2 * bytes;
    team.each(bytes, [&](int64_t i) {
      out[2 * i] = static_cast<int8_t>((in[i] >> 4) - 8);
      out[2 * i + 1] = static_cast<int8_t>((in[i] & 15) - 8);
    });
  }
};
JACKSCREW_ROW_KERNEL(UnpackInt4)

// The backward pass of QuantizeRotated: from the gradient of transformed rows to that of `from`. It
// is 0 where a number was clipped, and passes rounding unchanged (straight-through).
struct RotateBack {
  static constexpr bool kShortLoops = true;
  const float* gradient;  // [rows, width], of the transformed rows
  const float* from;      // [rows, width], row stride from_stride; null: nothing was clipped
  float* to;              // [rows, width], row stride to_stride
  int64_t width, from_stride, to_stride, block;
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float shrink = orthonormal_factor(block);
    const float* in = gradient + row * width;
    float* out = to + row * to_stride;
    const float* cut = from != nullptr ? from + row * from_stride : nullptr;
    const float factor = from != nullptr ? inverse_step(int4_step(team, cut, width), shrink) : 0.0f;
    for (int64_t at = 0; at < width; at += kHadamardBlock) {
      const int64_t count = width - at < kHadamardBlock ? width - at : kHadamardBlock;
      typename Team::template RowRegisters<float, kHadamardBlock> values, inside;
      if (count < kHadamardBlock) {
        team.each(kHadamardBlock, [&](int64_t i) { values[i] = inside[i] = 0.0f; });
      }
      if (cut != nullptr) {
        team.each(count, [&](int64_t i) { inside[i] = cut[at + i]; });
        team.hadamard(inside, block);
        team.each(count, [&](int64_t i) {
          const float value = inside[i] * factor;
          values[i] = value < kInt4Lowest || value > kInt4Highest ? 0.0f : in[at + i];
        });
      } else {
        team.each(count, [&](int64_t i) { values[i] = in[at + i]; });
      }
      team.hadamard(values, block);
      team.each(count, [&](int64_t i) {
        const float value = values[i] * shrink;
        out[at + i] = accumulate ? out[at + i] + value : value;
      });
    }
  }
};
JACKSCREW_ROW_KERNEL(RotateBack)

}  // namespace jackscrew
