// How adapters begin from the values of their weights (lora_init).
#pragma once

#include "learners/learner.h"
#include "learners/lora_options.h"

namespace jackscrew {

// What rounding took from weights, in sums of squares over all of them.
struct RoundingLoss {
  double weights = 0.0;  // of the original values
  double lost = 0.0;     // original - stored
  double left = 0.0;     // original - (stored and what the adapters begin with)
};

// The factors of an adapter: scale * b a.
struct LoraFactors {
  Tensor a;  // f32 [rank, in]
  Tensor b;  // f32 [out, rank]
  double scale;
};

// LoftQ (Li et al. 2023, algorithm 1 with one step, the stored weight being what it is): the
// adapter is the best for what rounding took, and nothing where that is nothing.
void begin_by_loftq(const LearnerContext& context, const Weight& weight, const LoraFactors& adapter,
                    RoundingLoss& loss);

// PiSSA (Meng et al. 2024): the adapter is the principal part of the weight, which learns in its
// place, and `initial`, which is to be subtracted, the same. With `original` the adapter has in its
// directions the values before rounding.
void begin_by_pissa(const LearnerContext& context, const Weight& weight, bool original,
                    const LoraFactors& adapter, const LoraFactors& initial, RoundingLoss& loss);

}  // namespace jackscrew
