// Full training: every weight learns as a whole.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

std::unique_ptr<Learner> make_full_learner();

// The slot of a weight that learns as a whole: f32 gradient, optimizer state, and an f32 master
// where the storage is narrower. `learning_rate_scale` multiplies the step's learning rate; a
// product's parameter (WeightKind::product) has the rate of its own spec if that has one, and no
// weight decay.
std::unique_ptr<LearnerSlot> make_full_slot(const LearnerContext& context, Weight& weight,
                                            double learning_rate_scale = 1.0);

}  // namespace jackscrew
