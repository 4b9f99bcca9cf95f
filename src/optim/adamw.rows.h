// AdamW with f32 states.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_operands.h"
#include "kernels/step_scalars.h"
#include "optim/adamw_rule.h"

namespace jackscrew {

// Counts the step of one tensor and forms its factors in double, as Python does. One row.
struct AdamwPrepare {
  static constexpr bool kBatched = true;
  const StepScalars* scalars;
  AdamwFactors* factors;
  float learning_rate_scale, weight_decay;
  double beta1, beta2;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    team.once([&] {
      factors->active = scalars->finite;
      if (scalars->finite == 0) return;
      factors->step += 1;
      const double rate = static_cast<double>(scalars->learning_rate * learning_rate_scale);
      // Powers by repeated squaring: the same bits on every target, unlike a library's pow.
      double power1 = 1.0;
      double power2 = 1.0;
      double base1 = beta1;
      double base2 = beta2;
      for (int32_t n = factors->step; n > 0; n >>= 1) {
        if ((n & 1) != 0) {
          power1 *= base1;
          power2 *= base2;
        }
        base1 *= base1;
        base2 *= base2;
      }
      factors->decay = static_cast<float>(1.0 - rate * static_cast<double>(weight_decay));
      factors->step_size = static_cast<float>(rate / (1.0 - power1));
      factors->denominator = static_cast<float>(1.0 / __builtin_sqrt(1.0 - power2));
      factors->clip_scale = scalars->clip_scale;
    });
  }
};
JACKSCREW_ROW_KERNEL(AdamwPrepare)

// One chunk of one tensor; also zeroes the gradient for the next step.
struct AdamwUpdate {
  static constexpr bool kBatched = true;
  // Small adapters, too, have chunks for many of a GPU's blocks.
  static constexpr int64_t kChunk = 2048;
  const AdamwFactors* factors;
  float* parameter;  // [count]
  float* gradient;   // [count]
  float* m;          // [count]
  float* v;          // [count]
  int64_t count;
  AdamwRule rule;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t begin = row * kChunk;
    const int64_t size = count - begin < kChunk ? count - begin : kChunk;
    float* g = gradient + begin;
    const AdamwFactors f = *factors;
    if (f.active == 0) {
      team.each(size, [&](int64_t i) { g[i] = 0.0f; });
      return;
    }
    team.elementwise(
        size,
        [&](float& p, float& grad, float& first, float& second) {
          const float clipped = grad * f.clip_scale;
          first = rule.first(first, clipped);
          second = rule.second(second, clipped);
          p = rule.step(p, first, second, f);
          grad = 0.0f;
        },
        updates(parameter + begin), updates(g), updates(m + begin), updates(v + begin));
  }
};
JACKSCREW_ROW_KERNEL(AdamwUpdate)

}  // namespace jackscrew
