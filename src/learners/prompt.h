// Prompt tuning (Lester et al. 2021, "The power of scale for parameter-efficient prompt tuning"):
// every sequence begins with virtual tokens, and only their vectors learn. Saved and loaded in
// PEFT's layout.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

std::span<const OptionSpec> prompt_options();

std::unique_ptr<Learner> make_prompt_learner(const OptionSet& options);

}  // namespace jackscrew
