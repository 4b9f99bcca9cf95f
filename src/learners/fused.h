// The update fused into backward (as in LOMO: Lv et al., arXiv 2306.09782): a weight is updated as
// soon as its gradient is complete, and the gradients of the matrices take one buffer in turn where
// a step has one micro-batch. Gradients are clipped weight by weight, if at all, for the norm of
// all of them is known too late: each to the part of max_grad_norm that it had of that norm in the
// step before, in the first step to 1 / sqrt(N) of it where there are N weights. Where parts stay
// what they were, that is clipping by the norm of all.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

struct FusedOptions {
  WeightDecay weight_decay;
  bool clips = false;  // where max_grad_norm is not 0
  // Memory that gradients of matrices share, as large as the largest; null: each has its own.
  Arena* shared_gradients = nullptr;
};

// Makes the slots of `learner` update in complete(), and no more in apply(). A step whose loss is
// not finite changes nothing; one of which a gradient is not, nothing from that weight on.
std::unique_ptr<Learner> make_fused_learner(std::unique_ptr<Learner> learner,
                                            const FusedOptions& options);

}  // namespace jackscrew
