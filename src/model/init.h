// Weights before training from scratch.
#pragma once

#include "learners/learner.h"
#include "model/config.h"

namespace jackscrew {

// Norms become 1, everything else normal with the configuration's initializer_range, as
// transformers initialises a Llama. The numbers depend on seed and tensor name alone. `staging`
// holds panels.
void init_weight(Ops& ops, const ModelConfig& config, uint64_t seed, const WeightInfo& info,
                 Weight& weight, Arena& staging);

}  // namespace jackscrew
