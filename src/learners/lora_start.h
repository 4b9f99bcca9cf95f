// Initial adapters from the values of their weights (lora_init).
#pragma once

#include "learners/learner.h"
#include "learners/lora_options.h"
#include "learners/low_rank.h"

namespace jackscrew {

// Sums of squares over all weights: what rounding took from them, and what adapters gave back.
struct RoundingSquares {
  double weights = 0.0;         // of the original values
  double rounding_error = 0.0;  // original - stored
  double residual = 0.0;        // original - (stored + initial adapter)
};

// LoftQ (Li et al. 2023, algorithm 1 with one step, for a stored weight that is given): the adapter
// starts as the best low-rank approximation of the rounding error, and with B = 0 where there is no
// error. Adds the weight's share to `squares`.
void begin_by_loftq(const LearnerContext& context, const Weight& weight, const LoraFactors& adapter,
                    RoundingSquares& squares);

// PiSSA (Meng et al. 2024): the adapter starts as the principal part of the weight and learns in
// its place; `initial` is set to the same, for the caller to subtract. With `original`, the adapter
// also takes the part of the rounding error that lies in its directions, so that in these weight +
// adapter - initial has the values before rounding; only then is the weight's share added to
// `squares`.
void begin_by_pissa(const LearnerContext& context, const Weight& weight, bool original,
                    const LoraFactors& adapter, const LoraFactors& initial,
                    RoundingSquares& squares);

}  // namespace jackscrew
