// Floating-point storage: f32, bf16, f16. A row is a matrix row.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "kernels/row_operands.h"
#include "quant/rounding.h"

namespace jackscrew {

template <class Team, class From, class To>
JACKSCREW_ROW void convert_row(const Team& team, int64_t width, const From* from, To* to) {
  team.elementwise(
      width, [](float value, float& out) { out = value; }, reads(from), writes(to));
}
// Within one type nothing is rounded: a NaN keeps its bits.
template <class Team, class Element>
JACKSCREW_ROW void convert_row(const Team& team, int64_t width, const Element* from, Element* to) {
  team.each(width, [&](int64_t i) { to[i] = from[i]; });
}

// to[row] = from[indices ? indices[row] : row], converted.
template <class From, class To>
struct ConvertRows {
  const From* from;        // [?, width], row stride from_stride
  const int32_t* indices;  // row list; null: rows in order
  To* to;                  // [rows, width], row stride to_stride
  int64_t width, from_stride, to_stride;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const From* in = from + (indices != nullptr ? indices[row] : row) * from_stride;
    To* out = to + row * to_stride;
    convert_row(team, width, in, out);
  }
};

// Stochastic rounding: `nearest`, or its neighbour on the other side of the value, so that the
// expected result is the value. The bits of these types are ordered as their magnitudes are.
template <class To>
JACKSCREW_ROW To round_stochastically(float value, float uniform) {
  const To nearest = from_float<To>(value);
  const float at = to_float(nearest);
  const bool inward = __builtin_fabsf(at) > __builtin_fabsf(value);
  const To other{static_cast<uint16_t>(inward ? nearest.bits - 1 : nearest.bits + 1)};
  const float gap = to_float(other) - at;
  // Values that are exact, infinite or NaN always become `nearest`.
  return (value - at) / gap > uniform ? other : nearest;
}
template <>
JACKSCREW_ROW float round_stochastically<float>(float value, float) {
  return value;
}

// Rounds rows of f32 into storage.
template <class To>
struct RoundRows {
  const float* from;  // [rows, width]
  To* to;             // [rows, width]
  int64_t width, first_row;
  Rounding rounding;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    if (keeps_storage(rounding)) return;
    const float* in = from + row * width;
    To* out = to + row * width;
    if (!rounding.stochastic) {
      convert_row(team, width, in, out);
      return;
    }
    const RandomStream random = rounding_stream(rounding);
    const uint64_t first = static_cast<uint64_t>((first_row + row) * width);
    team.each(width, [&](int64_t i) {
      out[i] = round_stochastically<To>(in[i], random.uniform(first + static_cast<uint64_t>(i)));
    });
  }
};
using RoundF32 = RoundRows<float>;
using RoundBf16 = RoundRows<bf16>;
using RoundF16 = RoundRows<f16>;
JACKSCREW_ROW_KERNEL(RoundF32)
JACKSCREW_ROW_KERNEL(RoundBf16)
JACKSCREW_ROW_KERNEL(RoundF16)

// y[row] = sum of x times row `row` of a matrix.
template <class Element>
struct DotRows {
  static constexpr bool kShortLoops = true;  // a warp has eight elements a thread, and no barrier
  const float* x;                            // [width]
  const Element* matrix;                     // [rows, width]
  float* y;                                  // [rows]
  int64_t width;
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float total = dot(team, matrix + row * width);
    team.once([&] { y[row] = accumulate ? y[row] + total : total; });
  }

 private:
  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, const Element* in) const {
    if constexpr (Team::kHasEights) {
      if (width % 8 == 0 && team.begins_at_eight(in) && team.begins_at_eight(x)) {
        return team.dot_eights(
            static_cast<uint32_t>(width),
            [&](uint32_t i, const auto& put) {
              team.eight(in + i, put);
              return 1.0f;
            },
            x);
      }
    }
    return team.sum(width, [&](int64_t i) { return x[i] * to_float(in[i]); });
  }
};
using DotF32 = DotRows<float>;
using DotBf16 = DotRows<bf16>;
using DotF16 = DotRows<f16>;
JACKSCREW_ROW_KERNEL(DotF32)
JACKSCREW_ROW_KERNEL(DotBf16)
JACKSCREW_ROW_KERNEL(DotF16)

using ConvertF32F32 = ConvertRows<float, float>;
using ConvertF32Bf16 = ConvertRows<float, bf16>;
using ConvertBf16F32 = ConvertRows<bf16, float>;
using ConvertBf16Bf16 = ConvertRows<bf16, bf16>;
using ConvertF16F32 = ConvertRows<f16, float>;
using ConvertF16Bf16 = ConvertRows<f16, bf16>;
JACKSCREW_ROW_KERNEL(ConvertF32F32)
JACKSCREW_ROW_KERNEL(ConvertF32Bf16)
JACKSCREW_ROW_KERNEL(ConvertBf16F32)
JACKSCREW_ROW_KERNEL(ConvertBf16Bf16)
JACKSCREW_ROW_KERNEL(ConvertF16F32)
JACKSCREW_ROW_KERNEL(ConvertF16Bf16)

}  // namespace jackscrew
