// Random initial weights.
#pragma once

#include "base/philox.h"
#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

// x = mean + deviation * N(0, 1), by the Box-Muller transform of two random numbers per element: 32
// elements of a row take 64. A row is a matrix row; `first_row` makes the numbers independent of
// how a matrix is cut. It calls no function of the C library: those would keep the loop from being
// vectorised, which takes ten times as long, and differ in their last bits between machines.
struct NormalInit {
  static constexpr bool kShortLoops = true;
  float* x;  // [rows, width]
  uint64_t seed;
  int64_t width, first_row;
  uint32_t tensor;
  float mean, deviation;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    constexpr int64_t kElements = 32;
    const RandomStream stream = RandomStream::make(seed, RandomPurpose::init, 0, tensor);
    const int64_t parts = (width + kElements - 1) / kElements;
    for (int64_t part = 0; part < parts; ++part) {
      const auto random =
          team.sixty_four(stream, static_cast<uint64_t>((first_row + row) * parts + part));
      const int64_t begin = part * kElements;
      float* out = x + row * width + begin;
      team.each(width - begin < kElements ? width - begin : kElements, [&](int64_t i) {
        const float u = 1.0f - RandomStream::uniform_of(random[i]);  // (0, 1]
        const float radius = __builtin_sqrtf(-2.0f * row_log(u));
        const float turns = RandomStream::uniform_of(random[i + kElements]);
        out[i] = mean + deviation * radius * row_cos_of_turns(turns);
      });
    }
  }
};
JACKSCREW_ROW_KERNEL(NormalInit)

}  // namespace jackscrew
