// GaLore and Q-GaLore (Zhao et al., arXiv 2403.03507; Zhang et al., arXiv 2407.08296): all weights
// learn in place, each linear layer of the blocks in a subspace of its gradient.
//
// Differences from the papers' code: no gradient is formed and no SVD of one taken; moments are
// rotated when a subspace is refreshed; refreshes are spread over the steps; micro-batches
// accumulate; embedding, norms and head learn; updates are computed in f32 and rounded once.
#pragma once

#include "learners/galore_options.h"
#include "learners/learner.h"

namespace jackscrew {

std::span<const Saving> galore_savings();

// Throws Error(usage) for options that contradict each other.
std::unique_ptr<Learner> make_galore_learner(const OptionSet& options);

}  // namespace jackscrew
