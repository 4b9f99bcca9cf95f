// Every weight learns, all of it.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

std::unique_ptr<Learner> make_full_learner();

// The slot of a weight that learns as a whole: f32 gradient, optimizer state, and an f32 master
// where the storage is narrower.
std::unique_ptr<LearnerSlot> make_full_slot(const LearnerContext& context, const WeightInfo& info);

}  // namespace jackscrew
