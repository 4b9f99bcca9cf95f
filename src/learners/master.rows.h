// Rounding of exact values on their way into a master of bf16.
#pragma once

#include "kernels/row_math.h"
#include "quant/rounding.h"

namespace jackscrew {

// Stochastic rounding to bf16, so that what is lost at one flush is not lost at every flush. A row
// is a matrix row.
struct RoundToBf16 {
  const float* from;  // [rows, cols]
  bf16* to;           // [rows, cols]
  int64_t cols;
  int64_t first_row;  // of `from` in its matrix
  Rounding rounding;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* in = from + row * cols;
    bf16* out = to + row * cols;
    const RandomStream random = rounding_stream(rounding);
    const auto first = static_cast<uint64_t>((first_row + row) * cols);
    team.each(cols, [&](int64_t i) {
      out[i] = to_bf16_stochastic(in[i], random.bits(first + static_cast<uint64_t>(i)));
    });
  }
};
JACKSCREW_ROW_KERNEL(RoundToBf16)

}  // namespace jackscrew
