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
  // The norms of all gradients and of this one in the step before; `previous_norm` is then set
  // to this step's norm. Null where nothing is clipped.
  const float* previous_global_norm;
  float* previous_norm;
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
      if (scalars->finite == 0) scalars->last_step = scalars->step;
      scalars->clip_scale = 1.0f;
      if (previous_norm == nullptr || scalars->finite == 0) return;
      const bool known = *previous_global_norm > 0.0f && *previous_norm > 0.0f;
      const float share = known ? *previous_norm / *previous_global_norm : first_share;
      scalars->clip_scale = clip_scale(norm, share * scalars->max_grad_norm);
      *previous_norm = norm;
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
