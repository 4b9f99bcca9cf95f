// Rotary training: all weights of the blocks learn, a few at a time (after QRotaryTraining; BAdam,
// Luo et al. 2024, LISA, Pan et al. 2024, and HiFT, Liu et al. 2024, are settings of it). While a
// group is active, its weights are exact (f32) on the device, with gradient and optimizer state.
// All others are on the device in their storage format, and their exact values wait in masters.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

std::span<const OptionSpec> rotary_options();
std::span<const Saving> rotary_savings();
// Throws Error(usage) for options that contradict each other.
std::unique_ptr<Learner> make_rotary_learner(const OptionSet& options);

}  // namespace jackscrew
