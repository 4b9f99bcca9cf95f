// GaLore and Q-GaLore (Zhao et al., arXiv 2403.03507; Zhang et al., arXiv 2407.08296): all weights
// learn, the linear layers of the blocks each in a subspace of its gradient, and in place.
//
// Other than the papers' code: no gradient is formed and no SVD of one taken; moments follow when a
// subspace is refreshed; refreshes are spread over the steps; micro-batches accumulate; embedding,
// norms and head learn; updates are f32 arithmetic, rounded once.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

std::span<const OptionSpec> galore_options();
std::span<const Saving> galore_savings();

// Throws Error(usage) for options that contradict.
std::unique_ptr<Learner> make_galore_learner(const OptionSet& options);

}  // namespace jackscrew
