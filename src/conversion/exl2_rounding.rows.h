// Rounding of the columns of a group in EXL2: how far each row reaches, what the scales of a group
// would cost, and the rounding itself. A row of these kernels is a row of the matrix.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

// reach = the largest magnitude of a row's part of a group.
struct GroupReach {
  static constexpr bool kShortLoops = true;
  const float* w;  // [rows, cols]
  float* reach;    // [rows]
  int64_t cols, first, count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* r = w + row * cols + first;
    const float most = team.max(count, 0.0f, [&](int64_t i) { return __builtin_fabsf(r[i]); });
    team.once([&] { reach[row] = most; });
  }
};
JACKSCREW_ROW_KERNEL(GroupReach)

// The grid of a row in a group: whole numbers from -2^(bits - 1) on, times a scale.
struct Exl2Grid {
  float prescaled;  // f16(scale_max / 256)
  float lowest;     // -2^(bits - 1)
  // As programs decode: the product is rounded to f16.
  template <class Team>
  JACKSCREW_ROW float scale(const Team& team, int32_t scale_code) const {
    const auto root = static_cast<float>(scale_code + 1);
    return team.half(to_f16(root * root * prescaled));
  }
  JACKSCREW_ROW float number(float x, float inverse) const {
    const float inside = row_min(row_max(x * inverse, lowest), -1.0f - lowest);
    // Adding and taking away 1.5 * 2^23 rounds to the nearest, ties to even.
    return (inside + 12582912.0f) - 12582912.0f;
  }
};

// The scale code of a row that costs least, among the one that reaches its largest number and
// kTried - 1 below.
struct BestScale {
  int32_t code;
  float error;
};
template <class Team>
JACKSCREW_ROW BestScale best_scale(const Team& team, const Exl2Grid& grid, const float* w,
                                   const float* cost, int64_t count, float reach) {
  // Below five steps from 16, a scale is less than half of what reaches the largest number.
  constexpr int32_t kTried = 6;
  const float range = -0.5f - grid.lowest;
  const float root = __builtin_sqrtf(reach / (range * grid.prescaled));
  const auto top = static_cast<int32_t>(row_min(__builtin_ceilf(row_min(root, 16.0f)), 16.0f)) - 1;
  BestScale best{0, 0.0f};
  for (int32_t step = 0; step < kTried; ++step) {
    const int32_t code = top - step;
    if (code < 0 && step > 0) break;
    const int32_t tried = code < 0 ? 0 : code;
    const float scale = grid.scale(team, tried);
    const float inverse = 1.0f / scale;
    const float error = team.sum(count, [&](int64_t i) {
      const float miss = w[i] - scale * grid.number(w[i], inverse);
      return cost[i] * miss * miss;
    });
    if (step == 0 || error < best.error) best = {tried, error};
  }
  return best;
}

// errors = what a row costs at best with each of several scale_max.
struct TryScales {
  static constexpr bool kShortLoops = true;
  static constexpr int64_t kMost = 16;
  const float* w;      // [rows, cols]
  const float* cost;   // [cols], of a squared miss in a column
  const float* reach;  // [rows]
  float* errors;       // [rows, tried]
  int64_t cols, first, count, tried;
  float prescaled[kMost];  // [tried]
  float lowest;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    for (int64_t t = 0; t < tried; ++t) {
      const BestScale best = best_scale(team, Exl2Grid{prescaled[t], lowest},
                                        w + row * cols + first, cost + first, count, reach[row]);
      team.once([&] { errors[row * tried + t] = best.error; });
    }
  }
};
JACKSCREW_ROW_KERNEL(TryScales)

// Rounds a group; what that does to the outputs is made up for by the columns behind, up to `end`
// here, and by whoever multiplies `errors` with U further on.
struct RoundExl2Group {
  static constexpr bool kShortLoops = true;
  float* w;              // [rows, cols]; becomes what the codes stand for
  const float* cost;     // [cols]
  const float* reach;    // [rows]
  const float* u;        // [cols, cols], InverseFactor's
  uint8_t* codes;        // [rows, cols]
  uint8_t* scale_codes;  // [rows]
  float* errors;         // [rows, error_stride], of the columns from `begin` on
  double* sums;          // [rows]; the squares of `errors` are added
  int64_t cols, begin, first, count, end, error_stride;
  Exl2Grid grid;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    float* r = w + row * cols;
    const BestScale best = best_scale(team, grid, r + first, cost + first, count, reach[row]);
    const float scale = grid.scale(team, best.code);
    const float inverse = 1.0f / scale;
    team.once([&] { scale_codes[row] = static_cast<uint8_t>(best.code); });
    double sum = 0.0;
    for (int64_t k = first; k < first + count; ++k) {
      const float number = grid.number(r[k], inverse);
      const float value = team.half(to_f16(number * scale));
      const float* beside = u + k * cols;
      const float error = (value - r[k]) / beside[k];
      sum += static_cast<double>(error) * static_cast<double>(error);
      team.each(end - k - 1, [&](int64_t j) { r[k + 1 + j] += error * beside[k + 1 + j]; });
      team.once([&] {
        r[k] = value;
        codes[row * cols + k] = static_cast<uint8_t>(number - grid.lowest);
        errors[row * error_stride + k - begin] = error;
      });
    }
    team.once([&] { sums[row] += sum; });
  }
};
JACKSCREW_ROW_KERNEL(RoundExl2Group)

}  // namespace jackscrew
