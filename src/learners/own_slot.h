// The slot of what a product keeps beside a weight (WeightKind::product): it learns as another slot
// has it, without weight decay, and may take its values from data first.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

// `inner` learns. What data say is summed over the step as windows are, over lanes and ranks, and
// overwrites the weight, f32, at its end.
std::unique_ptr<LearnerSlot> make_own_slot(const LearnerContext& context, Weight& weight,
                                           std::unique_ptr<LearnerSlot> inner);

}  // namespace jackscrew
