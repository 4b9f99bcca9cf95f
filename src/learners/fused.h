// The update fused into backward (as in LOMO: Lv et al., arXiv 2306.09782): a weight is updated as
// soon as its gradient is complete. Where a step has one micro-batch, the gradients of the matrices
// use one buffer in turn. Clipping, if any, is per weight, because the norm of all gradients is
// known too late: a gradient is clipped to the share of max_grad_norm that its norm was of the
// global norm in the step before, or to 1 / sqrt(N) of it in the first step, and in the first of a
// weight's turn, with N weights in the model. As long as these shares do not change, that is the
// same as clipping by the global norm.
#pragma once

#include "learners/learner.h"

namespace jackscrew {

struct FusedOptions {
  WeightDecay weight_decay;
  bool clips = false;  // where max_grad_norm is not 0
  // Arena that the gradients of matrices share, as large as the largest of them; it must outlive
  // the slots. Null: each gradient has memory of its own.
  Arena* shared_gradients = nullptr;
};

// Makes the slots of `learner` update in complete() instead of apply(). A step whose loss is not
// finite changes nothing; one with a gradient that is not finite changes nothing from that weight
// on.
std::unique_ptr<Learner> make_fused_learner(std::unique_ptr<Learner> learner,
                                            const FusedOptions& options);

}  // namespace jackscrew
