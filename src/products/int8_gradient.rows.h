// Quantises the operands of dW = dyᵀ x, whose contraction runs over the tokens: the columns of dy
// and of x become signed bytes with scales of their own. A row of these kernels is kInt8Group
// tokens by kInt8Group columns. A value that is not finite makes its scale infinite.
#pragma once

#include "kernels/int8_group.h"
#include "kernels/row_count.h"
#include "quant/group_row.h"

namespace jackscrew {

// The tile that is one row of these kernels, of a matrix [tokens, width].
struct ColumnTile {
  int64_t group, first_token, tokens;
  int64_t block, first_column, columns;
  JACKSCREW_ROW ColumnTile(int64_t row, int64_t all_tokens, int64_t width) {
    const int64_t blocks = (width + kInt8Group - 1) / kInt8Group;
    group = row / blocks;
    block = row % blocks;
    first_token = group * kInt8Group;
    first_column = block * kInt8Group;
    tokens = all_tokens - first_token < kInt8Group ? all_tokens - first_token : kInt8Group;
    columns = width - first_column < kInt8Group ? width - first_column : kInt8Group;
  }
};

// The factor that brings numbers up to `largest` to codes up to `top`; finite for tiny ones too.
JACKSCREW_ROW float code_factor(float largest, float top) {
  return largest > 0.0f ? row_min(top / largest, kLargestFloat) : 0.0f;
}

// Clamps to [-top, top]. NaN becomes a code as well: the scale shows it.
JACKSCREW_ROW float clamp_to_codes(float value, float top) {
  return row_min(row_max(value, -top), top);
}

// Quantises dy and transposes it. Each column has a scale for every kInt8Group tokens, and is
// rounded stochastically after its rows are scaled. The random numbers are a function of seed,
// step, tensor, token and column.
struct QuantizeGradientColumns {
  static constexpr bool kShortLoops = true;
  const float* from;          // [tokens, width], row stride from_stride
  const float* token_scales;  // of token t at t * token_scales_stride; null: all 1
  int8_t* codes;              // [width, tokens], row stride codes_stride, whole words
  float* scales;              // [width, groups of tokens]
  const StepScalars* scalars;
  int64_t tokens, width, from_stride, token_scales_stride, codes_stride;
  RowCount rows;
  uint32_t tensor;
  int32_t limit;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ColumnTile tile(row, tokens, width);
    const int64_t columns = tile.columns;
    const int64_t groups = (tokens + kInt8Group - 1) / kInt8Group;
    const auto top = static_cast<float>(limit);
    const auto factor = [&](int64_t t) {
      return token_scales != nullptr ? token_scales[(tile.first_token + t) * token_scales_stride]
                                     : 1.0f;
    };
    const float* first = from + tile.first_token * from_stride + tile.first_column;
    typename Team::template RowRegisters<float, kInt8Group> factors;
    team.each(columns, [&](int64_t i) { factors[i] = 0.0f; });
    for (int64_t t = 0; t < tile.tokens; ++t) {
      const float* in = first + t * from_stride;
      const float scale = factor(t);
      team.each(columns, [&](int64_t i) {
        factors[i] = row_max(factors[i], nan_to_infinity(__builtin_fabsf(in[i] * scale)));
      });
    }
    float* to_scales = scales + tile.first_column * groups + tile.group;
    team.each(columns, [&](int64_t i) {
      to_scales[i * groups] = factors[i] / top;
      factors[i] = code_factor(factors[i], top);
    });
    const RandomStream stream =
        RandomStream::make(scalars->seed, RandomPurpose::gradient_rounding, scalars->step, tensor);
    const auto blocks = (width + kInt8Group - 1) / kInt8Group;
    int8_t* out = codes + tile.first_column * codes_stride + tile.first_token;
    // Four tokens at a time fill a word of a column's codes.
    for (int64_t begin = 0; begin < tile.tokens; begin += 4) {
      typename Team::template RowRegisters<uint32_t, kInt8Group> words;
      team.each(columns, [&](int64_t i) { words[i] = 0; });
      const int64_t end = tile.tokens - begin < 4 ? tile.tokens - begin : 4;
      for (int64_t t = 0; t < end; ++t) {
        const float* in = first + (begin + t) * from_stride;
        const float scale = factor(begin + t);
        const auto random = team.sixty_four(
            stream,
            static_cast<uint64_t>(rows.of(tile.first_token + begin + t) * blocks + tile.block));
        const auto shift = static_cast<uint32_t>(8 * t);
        team.each(columns, [&](int64_t i) {
          const float inside = clamp_to_codes(in[i] * scale * factors[i], top);
          const float code = round_to_integer(inside, RandomStream::uniform_of(random[i]));
          words[i] |= (static_cast<uint32_t>(static_cast<int32_t>(code)) & 255u) << shift;
        });
      }
      team.each_scalar(columns, [&](int64_t i) {
        const uint32_t word = words[i];
        __builtin_memcpy(out + i * codes_stride + begin, &word, sizeof word);
      });
    }
  }
};
JACKSCREW_ROW_KERNEL(QuantizeGradientColumns)

// The largest magnitude of each column in each group of tokens.
struct ColumnMaxima {
  static constexpr bool kShortLoops = true;
  const float* from;  // [tokens, width], row stride from_stride
  float* maxima;      // [groups, width]
  int64_t tokens, width, from_stride;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ColumnTile tile(row, tokens, width);
    const float* first = from + tile.first_token * from_stride + tile.first_column;
    typename Team::template RowRegisters<float, kInt8Group> largest;
    team.each(tile.columns, [&](int64_t i) { largest[i] = 0.0f; });
    for (int64_t t = 0; t < tile.tokens; ++t) {
      const float* in = first + t * from_stride;
      team.each(tile.columns, [&](int64_t i) {
        largest[i] = row_max(largest[i], nan_to_infinity(__builtin_fabsf(in[i])));
      });
    }
    float* out = maxima + tile.group * width + tile.first_column;
    team.each(tile.columns, [&](int64_t i) { out[i] = largest[i]; });
  }
};
JACKSCREW_ROW_KERNEL(ColumnMaxima)

// Rounds to nearest, with a scale for every column.
struct QuantizeColumns {
  static constexpr bool kShortLoops = true;
  const float* from;    // [tokens, width], row stride from_stride
  const float* maxima;  // [groups, width]
  int8_t* codes;        // [tokens, width]
  float* scales;        // [width]
  int64_t tokens, width, from_stride;
  int64_t limit;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const ColumnTile tile(row, tokens, width);
    const int64_t columns = tile.columns;
    const int64_t groups = (tokens + kInt8Group - 1) / kInt8Group;
    const auto top = static_cast<float>(limit);
    typename Team::template RowRegisters<float, kInt8Group> factors;
    team.each(columns, [&](int64_t i) { factors[i] = 0.0f; });
    for (int64_t group = 0; group < groups; ++group) {
      const float* of_group = maxima + group * width + tile.first_column;
      team.each(columns, [&](int64_t i) { factors[i] = row_max(factors[i], of_group[i]); });
    }
    if (tile.group == 0) {
      team.each(columns, [&](int64_t i) { scales[tile.first_column + i] = factors[i] / top; });
    }
    team.each(columns, [&](int64_t i) { factors[i] = code_factor(factors[i], top); });
    for (int64_t t = 0; t < tile.tokens; ++t) {
      const int64_t token = tile.first_token + t;
      const float* in = from + token * from_stride + tile.first_column;
      put_bytes(team, codes + token * width + tile.first_column, columns, [&](int64_t i) {
        return static_cast<int32_t>(round_to_integer(clamp_to_codes(in[i] * factors[i], top)));
      });
    }
  }
};
JACKSCREW_ROW_KERNEL(QuantizeColumns)

}  // namespace jackscrew
