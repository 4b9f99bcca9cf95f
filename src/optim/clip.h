// The global norm of the gradients, for clipping, logging and the check that a step is finite.
#pragma once

#include <vector>

#include "kernels/context.h"

namespace jackscrew {

class GradientNorm {
 public:
  // Takes memory for the partial sums of these gradients (f32, contiguous, outliving this object).
  GradientNorm(Memory& memory, std::vector<Tensor> gradients);

  // Sets grad_norm, clip_scale and finite of context.scalars. The sum is formed in fixed chunks in
  // double: its bits do not depend on threads.
  void compute(Context& context) const;

 private:
  std::vector<Tensor> gradients_;
  OwnedTensor partial_;  // f64 [chunks of all gradients]
};

}  // namespace jackscrew
