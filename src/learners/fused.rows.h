// See fused.h.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

// From the partial sums of one weight's gradient: its clipping factor, and whether the step is
// finite so far. The squares go to the step's norm. One row.
struct FinishOneGradient {
  const double* partial;  // [count]
  StepScalars* scalars;
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const double squares = team.sum_f64(count, [&](int64_t i) { return partial[i]; });
    team.once([&] {
      if (scalars->finite == 0) return;
      scalars->squares += squares;
      const float norm = static_cast<float>(__builtin_sqrt(squares));
      scalars->finite = norm <= 3.4e38f && scalars->loss_sum <= 1.0e300 ? 1 : 0;
      scalars->clip_scale = clip_scale(norm, scalars->max_grad_norm);
    });
  }
};
JACKSCREW_ROW_KERNEL(FinishOneGradient)

}  // namespace jackscrew
