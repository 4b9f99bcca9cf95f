// LoRA's own arithmetic on rows: scaling and dropout.
#pragma once

#include "base/philox.h"
#include "kernels/row_count.h"
#include "kernels/row_math.h"
#include "kernels/row_operands.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

// y (+)= x / (1 - probability) where kept, 0 where dropped. Which elements are kept is a function
// of seed, step, tensor and the global index of the element, so that recomputation drops the same.
template <class Activation>
struct LoraDropout {
  const Activation* x;  // [rows, width]
  Activation* y;        // [rows, width]
  const StepScalars* scalars;
  RowCount rows;
  int64_t width;
  uint32_t tensor;
  float probability;
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const RandomStream random =
        RandomStream::make(scalars->seed, RandomPurpose::dropout, scalars->step, tensor);
    const uint64_t base = static_cast<uint64_t>(rows.of(row) * width);
    const Activation* in = x + row * width;
    Activation* out = y + row * width;
    const float scale = 1.0f / (1.0f - probability);
    team.each(width, [&](int64_t i) {
      const bool keep = random.uniform(base + static_cast<uint64_t>(i)) >= probability;
      const float value = keep ? to_float(in[i]) * scale : 0.0f;
      out[i] = from_float<Activation>(accumulate ? to_float(out[i]) + value : value);
    });
  }
};
using LoraDropoutF32 = LoraDropout<float>;
using LoraDropoutBf16 = LoraDropout<bf16>;
JACKSCREW_ROW_KERNEL(LoraDropoutF32)
JACKSCREW_ROW_KERNEL(LoraDropoutBf16)

// x = uniform in [-bound, bound). A row is a matrix row.
struct LoraInit {
  float* x;  // [rows, width]
  uint64_t seed;
  int64_t width;
  uint32_t tensor;
  float bound;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const RandomStream random = RandomStream::make(seed, RandomPurpose::init, 0, tensor);
    float* r = x + row * width;
    const uint64_t base = static_cast<uint64_t>(row * width);
    team.each(width, [&](int64_t i) {
      r[i] = bound * (2.0f * random.uniform(base + static_cast<uint64_t>(i)) - 1.0f);
    });
  }
};
JACKSCREW_ROW_KERNEL(LoraInit)

}  // namespace jackscrew
