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

  // From now on the norm is of these gradients, f32, contiguous: of `sizes`, each at most once.
  void watch(std::vector<Tensor> gradients) { gradients_ = std::move(gradients); }

  // The three parts of compute(), for those who hold some of a model's gradients: measure() sums
  // the squares of each gradient, in fixed chunks in double, so that the bits do not depend on
  // threads; add() adds them to context.scalars->squares one gradient after the other, so that they
  // do not depend on who holds which; finish() sets loss, grad_norm, clip_scale and finite.
  void measure(Context& context) const;
  void add(Context& context) const;
  void finish(Context& context) const;
  void compute(Context& context) const {
    measure(context);
    add(context);
    finish(context);
  }

 private:
  std::vector<Tensor> gradients_;
  OwnedTensor partial_;  // f64 [chunks of all gradients]
  OwnedTensor sums_;     // f64 [gradients]
};

}  // namespace jackscrew
