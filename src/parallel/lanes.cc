#include "parallel/lanes.h"

#include <bit>

#include "kernels/add_scaled.h"

namespace jackscrew {

std::vector<Tensor> LaneSums::tensors() const {
  std::vector<Tensor> out;
  for (const StateRef& state : accumulated_) out.push_back(state.view);
  return out;
}

void LaneSums::begin_step(Ops& ops) {
  ended_ = 0;
  waiting_ = 0;
  for (const StateRef& state : accumulated_) {
    // With one lane a window simply accumulates from step to step.
    if (state.before_step.empty()) continue;
    ops.copy(state.before_step, state.view);
    ops.zero(state.view);
  }
}

void LaneSums::end_lane(Ops& ops, bool last) {
  ++ended_;
  // Two sums of equally many lanes are joined as soon as both exist.
  const auto joined =
      last ? waiting_ : static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(ended_)));
  for (const StateRef& state : accumulated_) {
    for (size_t i = 0; i < joined; ++i) {
      add_scaled(ops, state.view, state.lane_sums[waiting_ - 1 - i]);
    }
    if (last) continue;
    ops.copy(state.lane_sums[waiting_ - joined], state.view);
    ops.zero(state.view);
  }
  waiting_ = last ? 0 : waiting_ - joined + 1;
}

void LaneSums::end_step(Ops& ops) {
  for (const StateRef& state : accumulated_) {
    if (!state.before_step.empty()) add_scaled(ops, state.view, state.before_step);
  }
}

}  // namespace jackscrew
