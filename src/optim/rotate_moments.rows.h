// See rotate_moments.h.
#pragma once

#include "kernels/row_kernel.h"

namespace jackscrew {

// to = from ∘ from. A row is a matrix row.
struct SquareRows {
  const float* from;  // [rows, width]
  float* to;          // [rows, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* in = from + row * width;
    float* out = to + row * width;
    team.each(width, [&](int64_t i) { out[i] = in[i] * in[i]; });
  }
};
JACKSCREW_ROW_KERNEL(SquareRows)

// to += kShare * mean of the row of from. A row is a matrix row.
struct AddShareOfMean {
  static constexpr float kShare = 1e-3f;
  const float* from;  // [rows, width]
  float* to;          // [rows, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* in = from + row * width;
    float* out = to + row * width;
    const float total = team.sum(width, [&](int64_t i) { return in[i]; });
    const float share = kShare * total / static_cast<float>(width);
    team.each(width, [&](int64_t i) { out[i] += share; });
  }
};
JACKSCREW_ROW_KERNEL(AddShareOfMean)

}  // namespace jackscrew
