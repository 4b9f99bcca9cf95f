// DoRA's own arithmetic on rows.
#pragma once

#include "kernels/row_math.h"

namespace jackscrew {

// y = x ∘ factors, column by column; y may be x.
template <class Activation>
struct ScaleColumns {
  const Activation* x;   // [rows, width]
  const float* factors;  // [width]
  Activation* y;         // [rows, width]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const Activation* in = x + row * width;
    Activation* out = y + row * width;
    team.each(width,
              [&](int64_t i) { out[i] = from_float<Activation>(to_float(in[i]) * factors[i]); });
  }
};
using ScaleColumnsF32 = ScaleColumns<float>;
using ScaleColumnsBf16 = ScaleColumns<bf16>;
JACKSCREW_ROW_KERNEL(ScaleColumnsF32)
JACKSCREW_ROW_KERNEL(ScaleColumnsBf16)

// The norm of every row, and its square.
struct RowNorms {
  const float* x;  // [rows, width]
  float* squares;  // [rows]
  float* norms;    // [rows]
  int64_t width;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* r = x + row * width;
    const float square = team.sum(width, [&](int64_t i) { return r[i] * r[i]; });
    team.once([&] {
      squares[row] = square;
      norms[row] = __builtin_sqrtf(square);
    });
  }
};
JACKSCREW_ROW_KERNEL(RowNorms)

// magnitude / norm of each row of W + scale B A; 0 where the row is 0.
struct DoraFactors {
  const float* squares;    // [rows], of W
  const float* thin;       // [rank, rows], A Wᵀ
  const float* mixed;      // [rows, rank], B A Aᵀ
  const float* b;          // [rows, rank]
  const float* magnitude;  // [rows]
  float* factors;          // [rows]
  int64_t rows, rank;
  float scale;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* of_b = b + row * rank;
    const float* of_mixed = mixed + row * rank;
    const float added = team.sum(rank, [&](int64_t r) {
      return of_b[r] * (2.0f * thin[r * rows + row] + scale * of_mixed[r]);
    });
    team.once([&] {
      const float square = squares[row] + scale * added;
      factors[row] = square > 0.0f ? magnitude[row] / __builtin_sqrtf(square) : 0.0f;
    });
  }
};
JACKSCREW_ROW_KERNEL(DoraFactors)

// Accumulates the gradients of B and of the magnitudes. A magnitude of 0 gets none.
struct DoraGradient {
  const float* d;          // [rows, rank], added to B's gradient
  const float* b;          // [rows, rank]
  const float* dots;       // [rows], the share of W in the magnitude's gradient, times magnitude
  const float* magnitude;  // [rows]
  float* db;               // [rows, rank]
  float* dmagnitude;       // [rows]
  int64_t rank;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* of_d = d + row * rank;
    const float* of_b = b + row * rank;
    float* to = db + row * rank;
    const float dot = team.sum(rank, [&](int64_t r) { return of_d[r] * of_b[r]; });
    team.each(rank, [&](int64_t r) { to[r] += of_d[r]; });
    team.once([&] {
      const float of = magnitude[row];
      dmagnitude[row] += of != 0.0f ? (dots[row] + dot) / of : 0.0f;
    });
  }
};
JACKSCREW_ROW_KERNEL(DoraGradient)

}  // namespace jackscrew
