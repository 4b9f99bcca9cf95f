// Trained matrices and vectors that a learner adds beside frozen weights.
#pragma once

#include <memory>
#include <string>

#include "learners/gradient_buffer.h"

namespace jackscrew {

// A trained f32 matrix or vector with its gradient and optimizer state.
class Factor {
 public:
  Factor(const LearnerContext& context, std::string name, std::initializer_list<int64_t> shape);

  const std::string& name() const { return name_; }
  const Tensor& value() const { return value_.view(); }
  const Tensor& gradient() const { return gradient_.view(); }

  void apply(Context& context, double learning_rate_scale, double weight_decay);
  void visit(const StateVisitor& visitor) const;

 private:
  std::string name_;
  OwnedTensor value_;
  GradientBuffer gradient_;                // training only
  std::unique_ptr<OptimizerState> state_;  // training only
};

}  // namespace jackscrew
