// Where a slot sums the gradient of a step.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

// An f32 tensor that is zero when the first gradient comes: the slot's own or, where every gradient
// is applied before the next is formed, one that all of them take in turn.
class GradientBuffer {
 public:
  GradientBuffer() = default;
  GradientBuffer(const LearnerContext& context, std::initializer_list<int64_t> shape) {
    if (context.shared_gradients != nullptr) {
      const Arena::Frame frame(*context.shared_gradients);
      view_ = context.shared_gradients->tensor(DType::f32, shape);
      return;
    }
    own_ = OwnedTensor(context.memory, Purpose::gradients, DType::f32, shape);
    view_ = own_.view();
  }
  const Tensor& view() const { return view_; }

 private:
  OwnedTensor own_;
  Tensor view_;
};

}  // namespace jackscrew
