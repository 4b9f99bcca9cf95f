// Quantises rows of f32 to signed bytes with a scale for every kInt8Group columns: value = scale *
// code, |code| <= limit. A row of these kernels is a group. A value that is not finite makes its
// scale infinite, and with it every result of the token.
#pragma once

#include "kernels/int8_group.h"
#include "kernels/row_count.h"
#include "quant/group_row.h"

namespace jackscrew {

// Quantises a group of up to `left` columns: code i is round(i, value(i) / scale), the quotient
// being clamped to [-limit, limit] before.
template <class Team, class Value, class Round>
JACKSCREW_ROW void quantize_group(const Team& team, int64_t left, int64_t limit, int8_t* codes,
                                  float* to_scale, const Value& value, const Round& round) {
  const int64_t count = left < kInt8Group ? left : kInt8Group;
  const auto top = static_cast<float>(limit);
  const float scale = team.max(count, 0.0f, [&](int64_t i) {
    return nan_to_infinity(__builtin_fabsf(value(i)));
  }) / top;
  team.once([&] { *to_scale = scale; });
  const float divisor = scale > 0.0f ? scale : 1.0f;
  put_bytes(team, codes, count, [&](int64_t i) {
    const float inside = row_min(row_max(value(i) / divisor, -top), top);
    return static_cast<int32_t>(round(i, inside));
  });
}

// Rounds to nearest.
struct QuantizeGroups {
  static constexpr bool kShortLoops = true;
  const float* from;  // [tokens, width], row stride from_stride
  int8_t* codes;      // [tokens, width]
  float* scales;      // [tokens, groups]
  int64_t width, from_stride, groups;
  int64_t limit;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t token = row / groups;
    const int64_t at = row % groups * kInt8Group;
    const float* in = from + token * from_stride + at;
    quantize_group(
        team, width - at, limit, codes + token * width + at, scales + row,
        [&](int64_t i) { return in[i]; },
        [&](int64_t, float value) { return round_to_integer(value); });
  }
};
JACKSCREW_ROW_KERNEL(QuantizeGroups)

// Rounds a gradient stochastically, after its columns are scaled. The random numbers are a function
// of seed, step, tensor, token and column: recomputation and any split into micro-batches give the
// same codes.
struct QuantizeGradientGroups {
  static constexpr bool kShortLoops = true;
  const float* from;           // [tokens, width], row stride from_stride
  const float* column_scales;  // [width]
  int8_t* codes;               // [tokens, width]
  float* scales;               // [tokens, groups]
  const StepScalars* scalars;
  int64_t width, from_stride, groups;
  RowCount tokens;
  int64_t first_group, token_groups;  // in the whole gradient: this part's first, a token's groups
  uint32_t tensor;
  int32_t limit;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t token = row / groups;
    const int64_t group = row % groups;
    const int64_t at = group * kInt8Group;
    const float* in = from + token * from_stride + at;
    const float* factors = column_scales + at;
    const RandomStream stream =
        RandomStream::make(scalars->seed, RandomPurpose::gradient_rounding, scalars->step, tensor);
    const auto random = team.sixty_four(
        stream, static_cast<uint64_t>(tokens.of(token) * token_groups + first_group + group));
    quantize_group(
        team, width - at, limit, codes + token * width + at, scales + row,
        [&](int64_t i) { return in[i] * factors[i]; },
        [&](int64_t i, float value) {
          return round_to_integer(value, RandomStream::uniform_of(random[i]));
        });
  }
};
JACKSCREW_ROW_KERNEL(QuantizeGradientGroups)

}  // namespace jackscrew
