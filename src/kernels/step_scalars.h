// What changes every step, in device memory: kernels read it from there, so that recorded work (a
// CUDA graph) can be replayed and a non-finite step can be skipped without asking the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/philox.h"

namespace jackscrew {

struct StepScalars {
  // Written by the host when a step begins.
  float learning_rate;
  float max_grad_norm;    // 0: no clipping
  float inverse_targets;  // 1 / target tokens of the whole step
  uint32_t step;          // counted from 0
  uint64_t seed;
  double targets;   // of the whole step
  double loss_sum;  // of the targets' negative log-likelihoods, nats; 0, and the device adds to it
  double squares;   // of the gradients' elements; 0, likewise
  // Written by the device when it ends, and left alone from the first step on that is not finite:
  // the host may look at it when it likes.
  double loss;         // mean over the targets
  float grad_norm;     // before clipping
  float clip_scale;    // factor on gradients: min(1, max_grad_norm / grad_norm)
  uint32_t last_step;  // the step that these are of
  int32_t finite = 1;  // 0: the norm or the loss was NaN or infinite; nothing is updated any more
};

// What the host writes when a step begins.
// As torch.nn.utils.clip_grad_norm_, with its 1e-6; a limit of 0 is none.
JACKSCREW_INLINE float clip_scale(float norm, float limit) {
  const float scale = limit / (norm + 1e-6f);
  return limit > 0.0f && scale < 1.0f ? scale : 1.0f;
}

inline constexpr int64_t kStepBeginBytes = offsetof(StepScalars, loss);

}  // namespace jackscrew
