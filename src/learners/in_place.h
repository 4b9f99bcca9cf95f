// Weights that learn where they are stored: no exact copy of them exists. Updated values are
// rounded to the storage stochastically, so that the expected change is the update itself.
#pragma once

#include <functional>
#include <memory>

#include "learners/learner.h"

namespace jackscrew {

// Updates `values`, f32 [end - begin, cols], of rows [begin, end).
using RowUpdate = std::function<void(const Tensor& values, int64_t begin, int64_t end)>;

// Runs `update` on all rows and writes them back, in blocks of about 16 MiB that begin at a
// multiple of 256 elements (all at once where the weight is f32). A step that is not finite leaves
// every byte as it is; where the weight is f32, `update` must see to that.
void update_in_place(Context& context, Weight& weight, bool stochastic, const RowUpdate& update);

// The weight as a state of a run: its values if they are f32, else the bytes of its storage.
StateRef in_place_state(const Weight& weight);

// The slot of a weight that learns as a whole, in place: f32 gradient and optimizer state.
std::unique_ptr<LearnerSlot> make_in_place_slot(const LearnerContext& context, Weight& weight,
                                                bool stochastic);

}  // namespace jackscrew
