// First values of a product's parameters from data: see Product::add_parameter_start.
#pragma once

#include "kernels/row_math.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

// values = the weighted means, where something was summed and both mean and step are finite;
// clears the sums. One row.
struct TakeStart {
  float* sums;    // [2, size]: sums of values times weights, and of the weights
  float* values;  // [size]
  const StepScalars* scalars;
  int64_t size;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    team.each(size, [&](int64_t i) {
      const float weight = sums[size + i];
      const float mean = sums[i] / (weight > 0.0f ? weight : 1.0f);
      // mean - mean is NaN, hence not 0, where the mean is not finite.
      const bool takes = weight > 0.0f && scalars->finite != 0 && mean - mean == 0.0f;
      values[i] = takes ? mean : values[i];
      sums[i] = sums[size + i] = 0.0f;
    });
  }
};
JACKSCREW_ROW_KERNEL(TakeStart)

}  // namespace jackscrew
