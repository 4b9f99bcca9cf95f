// Hadamard transforms of rows, and the 4-bit levels that rows are rounded to after them: shared by
// the row kernels of 4-bit products.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

// The largest block: as many elements as registers hold.
inline constexpr int64_t kHadamardBlock = 128;

// The sixteen levels of a signed nibble.
inline constexpr float kInt4Lowest = -8.0f, kInt4Highest = 7.0f;

// Calls f(at, count, values) for the pieces of a row, `values` being columns [at, at + count) after
// the transform, which makes each block sqrt(block) times as long.
template <class Team, class F>
JACKSCREW_ROW void for_transformed(const Team& team, const float* row, int64_t width, int64_t block,
                                   const F& f) {
  for (int64_t at = 0; at < width; at += kHadamardBlock) {
    const int64_t count = width - at < kHadamardBlock ? width - at : kHadamardBlock;
    typename Team::template RowRegisters<float, kHadamardBlock> values;
    if (count < kHadamardBlock) team.each(kHadamardBlock, [&](int64_t i) { values[i] = 0.0f; });
    team.each(count, [&](int64_t i) { values[i] = row[at + i]; });
    team.hadamard(values, block);
    f(at, count, values);
  }
}

// The factor that makes the transform orthogonal.
JACKSCREW_ROW float orthonormal_factor(int64_t block) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(block));
}

// The factor that brings numbers of a transformed row to units of `step`; finite for tiny steps
// too.
JACKSCREW_ROW float inverse_step(float step, float shrink) {
  return step > 0.0f ? row_min(shrink / step, 3.4028235e38f) : 0.0f;
}

}  // namespace jackscrew
