// The slot of a parameter that a product keeps beside a weight (WeightKind::product). It wraps the
// slot that makes it learn, drops weight decay, and may take first values from data. Also whether a
// product's settings suit a learner.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

// `inner` learns. For a weight with begins_from_data, the values that the data suggest are summed
// over the step, its lanes and its ranks, as windows are; at the end of the step their mean
// overwrites the weight, f32.
std::unique_ptr<LearnerSlot> make_product_parameter_slot(const LearnerContext& context,
                                                         Weight& weight,
                                                         std::unique_ptr<LearnerSlot> inner);

// For a run that trains: throws Error(usage) where the product keeps parameters among `weights`
// that the learner would leave at zero.
void check_product_parameters(const Learner& learner, const Product& product,
                              std::span<const WeightSpec> weights);

// Throws Error(usage) where an option of the product is of the gradients of the weights that it
// multiplies, `weights`, of which the learner changes none.
void check_option_of_dw(const Learner& learner, const Product& product,
                        std::span<const WeightSpec> weights, const OptionSet& options);

}  // namespace jackscrew
