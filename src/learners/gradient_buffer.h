// The buffer in which a slot sums the gradient of a step.
#pragma once

#include <string>

#include "learners/learner.h"

namespace jackscrew {

// An f32 tensor that is zero when the first gradient comes: the slot's own or, where every gradient
// is applied before the next is formed, one that all slots use in turn.
class GradientBuffer {
 public:
  GradientBuffer() = default;
  GradientBuffer(const LearnerContext& context, std::initializer_list<int64_t> shape) {
    if (context.shared_gradients == nullptr) {
      *this = GradientBuffer(context.memory, Purpose::gradients, shape, context.lane_sums);
      return;
    }
    const Arena::Frame frame(*context.shared_gradients);
    view_ = context.shared_gradients->tensor(DType::f32, shape);
  }
  // A buffer of its own, with `lane_sums` more of its shape for sums of lanes.
  GradientBuffer(Memory& memory, Purpose purpose, std::initializer_list<int64_t> shape,
                 int64_t lane_sums)
      : own_(memory, purpose, DType::f32, shape), view_(own_.view()) {
    for (int64_t i = 0; i < lane_sums; ++i) {
      lane_sums_.emplace_back(memory, purpose, DType::f32, shape);
    }
  }
  bool empty() const { return view_.empty(); }
  const Tensor& view() const { return view_; }
  // As LearnerSlot::visit() shows it; `name` is the parameter's.
  StateRef state(const std::string& name) const {
    StateRef state{name + ".gradient", StateRole::gradient, view_, false};
    for (const OwnedTensor& sum : lane_sums_) state.lane_sums.push_back(sum.view());
    return state;
  }
  // As LearnerSlot::visit() shows a window, of which `name` is the state's; the last of its tensors
  // is for what it held before the step.
  StateRef window_state(const std::string& name) const {
    StateRef window = state(name);
    window.name = name;
    window.role = StateRole::window;
    if (window.lane_sums.empty()) return window;
    window.before_step = window.lane_sums.back();
    window.lane_sums.pop_back();
    return window;
  }

 private:
  OwnedTensor own_;
  Tensor view_;
  std::vector<OwnedTensor> lane_sums_;
};

}  // namespace jackscrew
