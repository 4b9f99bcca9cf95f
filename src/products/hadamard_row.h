// Hadamard transforms of rows, and the levels of four bits that rows are rounded to behind them:
// what row kernels of products in four bits share.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

// The largest block: what registers hold.
inline constexpr int64_t kHadamardBlock = 128;

// Sixteen levels of four bits, as a signed nibble has them.
inline constexpr float kInt4Lowest = -8.0f, kInt4Highest = 7.0f;

// Calls f(at, count, values) for the pieces of a row, `values` being columns [at, at + count)
// transformed, of which each block is sqrt(block) times as long as it was.
template <class Team, class F>
JACKSCREW_ROW void for_rotated(const Team& team, const float* row, int64_t width, int64_t block,
                               const F& f) {
  for (int64_t at = 0; at < width; at += kHadamardBlock) {
    const int64_t count = width - at < kHadamardBlock ? width - at : kHadamardBlock;
    typename Team::template Kept<float, kHadamardBlock> values;
    if (count < kHadamardBlock) team.each(kHadamardBlock, [&](int64_t i) { values[i] = 0.0f; });
    team.each(count, [&](int64_t i) { values[i] = row[at + i]; });
    team.hadamard(values, block);
    f(at, count, values);
  }
}

// What makes the transform orthogonal.
JACKSCREW_ROW float shrink_of(int64_t block) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(block));
}

// What brings numbers of a transformed row to units of `step`; finite for tiny steps too.
JACKSCREW_ROW float per_step(float step, float shrink) {
  return step > 0.0f ? row_min(shrink / step, 3.4028235e38f) : 0.0f;
}

}  // namespace jackscrew
