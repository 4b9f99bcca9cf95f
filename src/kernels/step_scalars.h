// What changes every step, in device memory. Kernels read it there, so that recorded work (a CUDA
// graph) can be replayed and a step that is not finite can be skipped without asking the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inline.h"

namespace jackscrew {

struct StepScalars {
  // Written by the host when a step begins.
  float learning_rate;
  float max_grad_norm;    // 0: no clipping
  float inverse_targets;  // 1 / target tokens of the whole step
  uint32_t step;          // counted from 0
  uint64_t seed;
  double targets;   // of the whole step
  double loss_sum;  // negative log-likelihoods of targets, nats; starts at 0, the device adds
  double squares;   // sum over the gradients' elements; starts at 0, the device adds
  // Written by the device when a step ends, and left alone from the first step on that is not
  // finite: the host may read it at any time.
  double loss;         // mean over the targets
  float grad_norm;     // before clipping
  float clip_scale;    // factor on gradients: min(1, max_grad_norm / grad_norm)
  uint32_t last_step;  // the step that these belong to
  int32_t finite = 1;  // 0: the norm or the loss was NaN or infinite; nothing is updated any more
};

// The factor on gradients, as in torch.nn.utils.clip_grad_norm_ with its 1e-6; a limit of 0 is
// none.
JACKSCREW_INLINE float clip_scale(float norm, float limit) {
  const float scale = limit / (norm + 1e-6f);
  return limit > 0.0f && scale < 1.0f ? scale : 1.0f;
}

// The leading bytes, which the host writes when a step begins.
inline constexpr int64_t kStepBeginBytes = offsetof(StepScalars, loss);

}  // namespace jackscrew
