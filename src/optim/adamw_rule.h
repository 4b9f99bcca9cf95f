// AdamW (Loshchilov and Hutter 2019) for one element in f32, in the order of operations of
// torch.optim.AdamW; the kernels that use it decide how moments are stored.
#pragma once

#include <cstdint>

#include "kernels/row_kernel.h"

namespace jackscrew {

// The factors of one update of one tensor, in device memory; written by AdamwPrepare.
struct AdamwFactors {
  int32_t step;       // updates made so far
  float decay;        // 1 - lr * weight_decay
  float step_size;    // lr / (1 - beta1^step)
  float denominator;  // 1 / sqrt(1 - beta2^step)
  float clip_scale;
  int32_t active;  // 0: the step is skipped, its gradients are not finite
};

struct AdamwRule {
  // 1 - beta is rounded once, from double, as torch does: 1 - 0.999f is off by 1.3e-5 of itself.
  float one_minus_beta1, beta2, one_minus_beta2, epsilon;

  JACKSCREW_ROW float first(float m, float grad) const { return m + one_minus_beta1 * (grad - m); }
  JACKSCREW_ROW float second(float v, float grad) const {
    return v * beta2 + one_minus_beta2 * grad * grad;
  }
  JACKSCREW_ROW float step(float p, float m, float v, const AdamwFactors& f) const {
    const float denominator = __builtin_sqrtf(v) * f.denominator + epsilon;
    return p * f.decay - f.step_size * (m / denominator);
  }
};

}  // namespace jackscrew
