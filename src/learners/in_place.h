// Weights that learn where they are stored: no exact copy of them exists, and what storage cannot
// hold of an update is rounded to either neighbour at random, so that the update itself is what is
// expected.
#pragma once

#include <functional>
#include <memory>

#include "learners/learner.h"

namespace jackscrew {

// Throws Error(usage) naming the weight where its format cannot be written.
void require_in_place(const Weight& weight);

// Changes the values f32 [end - begin, cols] of rows [begin, end).
using RowUpdate = std::function<void(const Tensor& values, int64_t begin, int64_t end)>;

// Runs `update` on all rows, in blocks of about 16 MiB of which each begins with a multiple of 256
// elements (all at once where the weight is f32), and writes them back. A step that is not finite
// leaves every byte as it is; where the weight is f32, `update` sees to that.
void update_in_place(Context& context, Weight& weight, bool stochastic, const RowUpdate& update);

// The weight's bytes as a state of a run: its values where they are f32, else what is stored.
StateRef in_place_state(const Weight& weight);

// The slot of a weight that learns as a whole, in place: f32 gradient and optimizer state.
std::unique_ptr<LearnerSlot> make_in_place_slot(const LearnerContext& context, Weight& weight);

}  // namespace jackscrew
