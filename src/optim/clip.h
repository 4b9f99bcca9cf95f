// The global norm of the gradients, for clipping, logging and the check that a step is finite.
#pragma once

#include <utility>
#include <vector>

#include "kernels/context.h"

namespace jackscrew {

class GradientNorm {
 public:
  // Takes memory for the partial sums of gradients of these sizes (elements), the most that will be
  // watched at once.
  GradientNorm(Memory& memory, const std::vector<int64_t>& sizes);

  // From now on the norm is of these gradients, f32, contiguous, each as large as one of `sizes`.
  void watch(std::vector<Tensor> gradients) { gradients_ = std::move(gradients); }

  // Sets grad_norm, clip_scale and finite of context.scalars. The sum is formed in fixed chunks in
  // double: its bits do not depend on threads.
  void compute(Context& context) const;

 private:
  std::vector<Tensor> gradients_;
  OwnedTensor partial_;  // f64 [chunks of all gradients]
};

}  // namespace jackscrew
