// What changes every step, in device memory: kernels read it from there, so that recorded work (a
// CUDA graph) can be replayed and a non-finite step can be skipped without asking the host.
#pragma once

#include <cstdint>

namespace jackscrew {

struct StepScalars {
  // Written by the host when the step begins.
  float learning_rate;
  float max_grad_norm;    // 0: no clipping
  float inverse_targets;  // 1 / target tokens of the whole step
  uint32_t step;          // counted from 0
  uint64_t seed;
  // Written by the device.
  double loss_sum;   // sum of the negative log-likelihoods of the targets, nats
  float grad_norm;   // before clipping
  float clip_scale;  // factor on gradients: min(1, max_grad_norm / grad_norm)
  int32_t finite;    // 1 unless the norm is NaN or infinite; 0 skips the update
  int32_t unused;    // keeps the size a multiple of 8
};

}  // namespace jackscrew
