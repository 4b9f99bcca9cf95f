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
  // Norms of the step before, of all gradients and of this one, which becomes this step's; null
  // where nothing is clipped.
  const float* all_before;
  float* before;
  int64_t count;
  float first_share;  // of max_grad_norm, where a norm of before is 0
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

// The norm of all gradients, behind a step that was finite. One row.
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
