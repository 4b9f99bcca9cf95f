// Random initial weights.
#pragma once

#include "base/philox.h"
#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

// x = mean + deviation * N(0, 1), by Box and Muller's transform. A row is a matrix row; `first_row`
// makes the numbers independent of how a matrix is cut.
struct NormalInit {
  float* x;  // [rows, width]
  uint64_t seed;
  int64_t width, first_row;
  uint32_t tensor;
  float mean, deviation;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const RandomStream random = RandomStream::make(seed, RandomPurpose::init, 0, tensor);
    float* r = x + row * width;
    const uint64_t base = static_cast<uint64_t>((first_row + row) * width);
    team.each(width, [&](int64_t i) {
      const uint64_t index = 2 * (base + static_cast<uint64_t>(i));
      const float u = 1.0f - random.uniform(index);  // (0, 1]
      const float angle = 6.2831853f * random.uniform(index + 1);
      const float radius = __builtin_sqrtf(-2.0f * __builtin_logf(u));
      r[i] = mean + deviation * radius * __builtin_cosf(angle);
    });
  }
};
JACKSCREW_ROW_KERNEL(NormalInit)

}  // namespace jackscrew
