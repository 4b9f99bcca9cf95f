// Rows of f32 as signed bytes with scales: value = scale * code, |code| <= limit.
//
// What is not finite makes its scale infinite, and with it every result of the row.
#pragma once

#include "kernels/int8_group.h"
#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

struct CodeScale {
  float scale, inverse;
};

// Elements below 2^-110 count as zero: the inverse would overflow.
JACKSCREW_ROW CodeScale code_scale(float largest, int32_t limit) {
  const auto top = static_cast<float>(limit);
  const bool zero = largest < 7.7e-34f;
  return {zero ? 0.0f : largest / top, zero ? 0.0f : top / largest};
}

// |value|, and infinity for NaN, which a maximum would pass over.
JACKSCREW_ROW float finite_magnitude(float value) {
  const float magnitude = __builtin_fabsf(value);
  return magnitude <= 3.4028235e38f ? magnitude : bits_float(0x7F800000u);
}

// value * inverse as a code in the low byte. Adding 1.5 * 2^23 rounds to the nearest integer, ties
// to even; fused, so that every compiler rounds once.
JACKSCREW_ROW uint32_t nearest_code(float value, float inverse) {
  return float_bits(__builtin_fmaf(value, inverse, 12582912.0f)) & 0xFFu;
}

// As nearest_code, or the next integer on the value's other side, so that the value is what is
// expected over uniform numbers in [0, 1).
JACKSCREW_ROW uint32_t stochastic_code(float value, float limit, float uniform) {
  const float inside = row_min(limit, row_max(-limit, value));
  const float shifted = inside + 12582912.0f;
  const float rest = inside - (shifted - 12582912.0f);  // exact
  const uint32_t up = uniform < rest ? 1u : 0u;
  const uint32_t down = uniform < -rest ? 1u : 0u;
  return (float_bits(shifted) + up - down) & 0xFFu;
}

// Rounds to nearest, with a scale per row or for every kInt8Group columns of it.
struct QuantizeRows {
  const float* from;  // [rows, width], row stride from_stride
  int8_t* codes;      // [rows, width], row stride codes_stride, a multiple of 4
  float* scales;      // [rows], or [rows, groups]
  int64_t width, from_stride, codes_stride;
  int32_t limit;
  bool grouped;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* in = from + row * from_stride;
    int8_t* out = codes + row * codes_stride;
    if (!grouped) {
      quantize(team, in, width, out, scales + row);
      return;
    }
    const int64_t groups = (width + kInt8Group - 1) / kInt8Group;
    float* row_scales = scales + row * groups;
    team.each_piece(groups, [&](const auto& part, int64_t i) {
      const int64_t at = i * kInt8Group;
      // The usual length is a constant, for the compiler to unroll its loops.
      if (width - at >= kInt8Group) {
        quantize(part, in + at, kInt8Group, out + at, row_scales + i);
      } else {
        quantize(part, in + at, width - at, out + at, row_scales + i);
      }
    });
  }

 private:
  template <class Part>
  JACKSCREW_ROW void quantize(const Part& part, const float* in, int64_t count, int8_t* out,
                              float* to_scale) const {
    const float largest = part.max(count, 0.0f, [&](int64_t i) { return finite_magnitude(in[i]); });
    const CodeScale scale = code_scale(largest, limit);
    part.once([&] { *to_scale = scale.scale; });
    const auto code = [&](int64_t i) { return nearest_code(in[i], scale.inverse); };
    // Four codes to a word: GCC would compute a loop that stores bytes with a quarter of a vector.
    auto* words = reinterpret_cast<uint32_t*>(out);
    part.each(count / 4, [&](int64_t i) {
      words[i] = code(4 * i) | code(4 * i + 1) << 8 | code(4 * i + 2) << 16 | code(4 * i + 3) << 24;
    });
    const int64_t whole = count / 4 * 4;
    part.each(count - whole,
              [&](int64_t i) { out[whole + i] = static_cast<int8_t>(code(whole + i)); });
  }
};
JACKSCREW_ROW_KERNEL(QuantizeRows)

// Rounds a gradient stochastically with a scale for every kInt8Group columns, after its columns are
// scaled. The random numbers are a function of seed, step, tensor, token and column: recomputation
// and any split into micro-batches give the same codes.
struct QuantizeGradientRows {
  const float* from;           // [rows, width], row stride from_stride
  const float* column_scales;  // [width]
  int8_t* codes;               // [rows, width], row stride codes_stride, a multiple of 4
  float* scales;               // [rows, groups]
  const StepScalars* scalars;
  int64_t width, from_stride, codes_stride;
  int64_t first_token;
  int64_t first_block, token_blocks;  // columns of the whole tensor in fours: of this part, in all
  uint32_t tensor;
  int32_t limit;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t groups = (width + kInt8Group - 1) / kInt8Group;
    const RandomStream random =
        RandomStream::make(scalars->seed, RandomPurpose::gradient_rounding, scalars->step, tensor);
    team.each_piece(groups, [&](const auto& part, int64_t i) {
      const int64_t at = i * kInt8Group;
      float* scale = scales + row * groups + i;
      if (width - at >= kInt8Group) {
        quantize(part, random, row, at, kInt8Group, scale);
      } else {
        quantize(part, random, row, at, width - at, scale);
      }
    });
  }

 private:
  template <class Part>
  JACKSCREW_ROW void quantize(const Part& part, const RandomStream& random, int64_t row, int64_t at,
                              int64_t count, float* to_scale) const {
    const float* in = from + row * from_stride + at;
    const float* factors = column_scales + at;
    int8_t* out = codes + row * codes_stride + at;
    const float largest =
        part.max(count, 0.0f, [&](int64_t i) { return finite_magnitude(in[i] * factors[i]); });
    const CodeScale scale = code_scale(largest, limit);
    part.once([&] { *to_scale = scale.scale; });
    const auto first =
        static_cast<uint64_t>((first_token + row) * token_blocks + first_block + at / 4);
    const auto top = static_cast<float>(limit);
    const auto code = [&](int64_t i, uint32_t bits) {
      return stochastic_code(in[i] * factors[i] * scale.inverse, top,
                             RandomStream::uniform_of(bits));
    };
    const auto blocks = part.random_sixteen(random, first);
    auto* words = reinterpret_cast<uint32_t*>(out);
    part.each(count / 4, [&](int64_t i) {
      const Philox4 numbers = blocks[i];
      words[i] = code(4 * i, numbers.x[0]) | code(4 * i + 1, numbers.x[1]) << 8 |
                 code(4 * i + 2, numbers.x[2]) << 16 | code(4 * i + 3, numbers.x[3]) << 24;
    });
    const int64_t whole = count / 4 * 4;
    part.each(count - whole, [&](int64_t i) {
      out[whole + i] = static_cast<int8_t>(code(whole + i, blocks[count / 4].x[i]));
    });
  }
};
JACKSCREW_ROW_KERNEL(QuantizeGradientRows)

}  // namespace jackscrew
