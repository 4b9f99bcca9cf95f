// Row kernels of GaLore.
#pragma once

#include "base/philox.h"
#include "kernels/row_kernel.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

// x = uniform in [-1, 1): the columns span a random subspace. A row is a matrix row.
struct RandomRows {
  float* x;  // [rows, width]
  uint64_t seed;
  int64_t width;
  uint32_t draw;  // which of the matrix's random subspaces
  uint32_t tensor;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const RandomStream random = RandomStream::make(seed, RandomPurpose::init, draw, tensor);
    float* r = x + row * width;
    const uint64_t base = static_cast<uint64_t>(row * width);
    team.each(width, [&](int64_t i) {
      r[i] = 2.0f * random.uniform(base + static_cast<uint64_t>(i)) - 1.0f;
    });
  }
};
JACKSCREW_ROW_KERNEL(RandomRows)

// x *= 1 - rate * decay, the rate being `scale` of the step's; nothing in a step that is not
// finite. A row is a matrix row.
struct DecayRows {
  float* x;  // [rows, width]
  const StepScalars* scalars;
  int64_t width;
  double scale, decay;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    if (scalars->finite == 0) return;
    const double rate = static_cast<double>(scalars->learning_rate) * scale;
    const float factor = static_cast<float>(1.0 - rate * decay);
    float* r = x + row * width;
    team.each(width, [&](int64_t i) { r[i] *= factor; });
  }
};
JACKSCREW_ROW_KERNEL(DecayRows)

}  // namespace jackscrew
