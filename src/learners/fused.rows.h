// See fused.h.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

// Takes the partial sums of squares of one weight's gradient, adds them to the step's norm, and
// sets the weight's clip_scale and whether the step is finite so far. One row.
struct FinishOneGradient {
  const double* partial;  // [count]
  StepScalars* scalars;
  // The norms of all gradients and of this one in the step before; `before` is then set to this
  // step's norm. Null where nothing is clipped.
  const float* all_before;
  float* before;
  int64_t count;
  float first_share;  // of max_grad_norm, used where either norm of the step before is 0
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const double squares = team.sum_f64(count, [&](int64_t i) { return partial[i]; });
    team.once([&] {
      if (scalars->finite == 0) return;
      scalars->squares += squares;
      const float norm = static_cast<float>(__builtin_sqrt(squares));
      scalars->finite = norm <= 3.4e38f && scalars->loss_sum <= 1.0e300 ? 1 : 0;
      scalars->clip_scale = 1.0f;
      if (before == nullptr || scalars->finite == 0) return;
      const bool known = *all_before > 0.0f && *before > 0.0f;
      const float share = known ? *before / *all_before : first_share;
      scalars->clip_scale = clip_scale(norm, share * scalars->max_grad_norm);
      *before = norm;
    });
  }
};
JACKSCREW_ROW_KERNEL(FinishOneGradient)

// Keeps the norm of all gradients after a step that was finite. One row.
struct KeepNorm {
  const StepScalars* scalars;
  float* norm;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    team.once([&] {
      if (scalars->finite != 0) *norm = scalars->grad_norm;
    });
  }
};
JACKSCREW_ROW_KERNEL(KeepNorm)

}  // namespace jackscrew
