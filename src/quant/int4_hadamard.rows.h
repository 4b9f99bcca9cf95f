// The row kernels of int4_hadamard; the layout is in int4_hadamard.h. Rows are transformed by
// kernels of their own, before they are encoded and after they have been decoded.
#pragma once

#include "quant/hadamard_row.h"
#include "quant/nibbles.h"

namespace jackscrew {

// A group is a row that has been transformed.
struct Int4HadamardCodec {
  static constexpr int32_t kZero = 8;  // the code of 0

  uint8_t* codes;     // [rows, cols / 2]
  float* row_scales;  // [rows]

  struct Numbers {
    float of_code[16];
  };
  JACKSCREW_ROW static Numbers numbers() {
    Numbers out;
    for (int32_t code = 0; code < 16; ++code) out.of_code[code] = static_cast<float>(code - kZero);
    return out;
  }
  JACKSCREW_ROW float scale(int64_t row) const { return row_scales[row]; }

  // Of its row's scale.
  static constexpr bool kDecodesUnits = true;
  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t, int64_t element, int64_t count,
                            const Store& store) const {
    const Numbers table = numbers();
    each_nibble_value(team, codes, table.of_code, element, count, store);
  }

  // See DecodesEights.
  template <class Team>
  JACKSCREW_ROW auto eights(const Team&) const {
    return [this](int64_t, int64_t element, const auto& put) {
      each_of_eight_nibbles(codes + element / 2, [&](uint32_t i, uint32_t bits) {
        put(i, static_cast<float>(static_cast<int32_t>(bits & 15u) - kZero));
      });
      return 1.0f;
    };
  }

  // See HasGroupDot.
  static constexpr bool kHasDotNumbers = true;
  template <class Dot>
  JACKSCREW_ROW auto dot_numbers() const {
    const Numbers table = numbers();
    return typename Dot::template Table<kZero>(table.of_code);
  }
  template <class Dot, class Team>
  JACKSCREW_ROW const float* scales(const Team&, int64_t row, int64_t, float*) const {
    return row_scales + row;
  }

  // Of transformed x.
  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t row, int64_t element, int64_t count,
                          const float* x) const {
    const Numbers table = numbers();
    return scale(row) * dot_nibbles(team, codes, table.of_code, element, count, x);
  }

  // Of numbers in units of the row's scale, which RotateToSteps has written.
  template <class Team>
  JACKSCREW_ROW void encode(const Team& team, int64_t, int64_t element, int64_t count,
                            const float* from, const GroupRounding& rounding) const {
    put_nibbles(team, rounding, element, count, codes, kZero, [&](int64_t i, auto... uniform) {
      // In this order of operands NaN becomes the lowest code: the scale shows it.
      const float number = row_max(round_to_integer(from[i], uniform...), kInt4Lowest);
      return static_cast<int32_t>(row_min(number, kInt4Highest)) + kZero;
    });
  }
};
using DecodeInt4Hadamard = DecodeGroups<Int4HadamardCodec>;
using DotInt4Hadamard = DotGroups<Int4HadamardCodec>;
using EncodeInt4Hadamard = EncodeGroups<Int4HadamardCodec>;
JACKSCREW_ROW_KERNEL(DecodeInt4Hadamard)
JACKSCREW_ROW_KERNEL(DotInt4Hadamard)
JACKSCREW_ROW_KERNEL(EncodeInt4Hadamard)

// Writes transformed rows in units of their steps, and the steps, which become the rows' scales.
struct RotateToSteps {
  static constexpr bool kShortLoops = true;
  // A row that is updated in place keeps a scale that is as near to the new one as this: rounding
  // changes the root mean square by some hundredths, and a scale that followed it from step to step
  // would run away.
  static constexpr float kSticky = 0.1f;
  const float* from;  // [rows, width]
  float* to;          // [rows, width]
  float* scales;      // [rows]
  int64_t width, block;
  Rounding rounding;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    if (keeps_storage(rounding)) return;
    const float* in = from + row * width;
    const float before = scales[row];
    const float best = int4_step(team, in, width);
    // No scale is near to a step that is 0 or not finite.
    const bool keeps = rounding.in_place && __builtin_fabsf(before - best) < kSticky * best;
    const float step = keeps ? before : best;
    team.once([&] { scales[row] = step; });
    const float factor = inverse_step(step, orthonormal_factor(block));
    float* out = to + row * width;
    for_transformed(team, in, width, block, [&](int64_t at, int64_t count, auto& values) {
      team.each(count, [&](int64_t i) { out[at + i] = values[i] * factor; });
    });
  }
};
JACKSCREW_ROW_KERNEL(RotateToSteps)

// Transforms rows, which is its own inverse, and multiplies them by the scales of rows of a matrix.
struct RotateRows {
  static constexpr bool kShortLoops = true;
  const void* from;        // [rows, from_stride] f32, or bf16
  void* to;                // [rows, to_stride] of the same type; may be `from`
  const float* scales;     // [matrix rows]; null: 1
  const int32_t* indices;  // which rows of the matrix; null: first_row, first_row + 1, ...
  int64_t first_row;
  int64_t width, from_stride, to_stride, block;
  bool is_bf16;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t source = indices != nullptr ? indices[row] : first_row + row;
    const float scale = scales != nullptr ? scales[source] : 1.0f;
    const float factor = scale * orthonormal_factor(block);
    if (is_bf16) {
      rotate(team, static_cast<const bf16*>(from) + row * from_stride,
             static_cast<bf16*>(to) + row * to_stride, factor);
    } else {
      rotate(team, static_cast<const float*>(from) + row * from_stride,
             static_cast<float*>(to) + row * to_stride, factor);
    }
  }

 private:
  template <class Team, class Element>
  JACKSCREW_ROW void rotate(const Team& team, const Element* in, Element* out, float factor) const {
    for_transformed(team, in, width, block, [&](int64_t at, int64_t count, auto& values) {
      team.each(count, [&](int64_t i) { out[at + i] = from_float<Element>(values[i] * factor); });
    });
  }
};
JACKSCREW_ROW_KERNEL(RotateRows)

}  // namespace jackscrew
