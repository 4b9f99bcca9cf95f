// Every weight learns, all of it.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

std::unique_ptr<Learner> make_full_learner();

// The slot of a weight that learns as a whole: f32 gradient, optimizer state, and an f32 master
// where the storage is narrower. The learning rate of the step counts `learning_rate_scale` times;
// what a product keeps has a rate of its own if it says so, and is never decayed.
std::unique_ptr<LearnerSlot> make_full_slot(const LearnerContext& context, Weight& weight,
                                            double learning_rate_scale = 1.0);

}  // namespace jackscrew
