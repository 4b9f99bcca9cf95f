// Hadamard transforms of rows, and the 4-bit levels that rows are rounded to after them: shared by
// the row kernels of 4-bit products and of what is stored for them.
#pragma once

#include "base/half.h"
#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "quant/group_row.h"

namespace jackscrew {

// The largest block: as many elements as registers hold.
inline constexpr int64_t kHadamardBlock = 128;

// The sixteen levels of a signed nibble.
inline constexpr float kInt4Lowest = -8.0f, kInt4Highest = 7.0f;

// Calls f(at, count, values) for the pieces of a row, `values` being columns [at, at + count) after
// the transform, which makes each block sqrt(block) times as long.
template <class Team, class Element, class F>
JACKSCREW_ROW void for_transformed(const Team& team, const Element* row, int64_t width,
                                   int64_t block, const F& f) {
  for (int64_t at = 0; at < width; at += kHadamardBlock) {
    const int64_t count = width - at < kHadamardBlock ? width - at : kHadamardBlock;
    typename Team::template RowRegisters<float, kHadamardBlock> values;
    if (count < kHadamardBlock) team.each(kHadamardBlock, [&](int64_t i) { values[i] = 0.0f; });
    team.each(count, [&](int64_t i) { values[i] = to_float(row[at + i]); });
    team.hadamard(values, block);
    f(at, count, values);
  }
}

// The largest block up to `most`, a power of two, that divides a width.
constexpr int64_t largest_hadamard_block(int64_t width, int64_t most = kHadamardBlock) {
  const int64_t largest = width & -width;
  return largest < most ? largest : most;
}

// The factor that makes the transform orthogonal.
JACKSCREW_ROW float orthonormal_factor(int64_t block) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(block));
}

// The factor that brings numbers of a transformed row to units of `step`; finite for tiny steps
// too.
JACKSCREW_ROW float inverse_step(float step, float shrink) {
  return step > 0.0f ? row_min(shrink / step, kLargestFloat) : 0.0f;
}

// The step of sixteen even levels with the least error for a normal variable, in units of its
// standard deviation (Max 1960, "Quantizing for minimum distortion", table II).
inline constexpr double kInt4Step = 0.335;

// The step of a row in four bits. Infinite where a number is infinite or NaN. Squares summed in
// double round to the same f32 in whatever order they are added, so every target has the same
// steps.
template <class Team>
JACKSCREW_ROW float int4_step(const Team& team, const float* row, int64_t width) {
  const double squares = team.sum_f64(width, [&](int64_t i) {
    const auto value = static_cast<double>(row[i]);
    return value * value;
  });
  const double mean = squares / static_cast<double>(width);
  return nan_to_infinity(static_cast<float>(kInt4Step * __builtin_sqrt(mean)));
}

}  // namespace jackscrew
