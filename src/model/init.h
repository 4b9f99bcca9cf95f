// Initial weights for training from scratch.
#pragma once

#include "learners/learner.h"
#include "model/config.h"

namespace jackscrew {

// Writes rows [first_row, first_row + rows of out) of a weight's initial values to out, f32: norms
// are 1, biases 0, everything else normally distributed with the configuration's initializer_range
// as its deviation, as transformers initialises a Llama. The random numbers depend on seed and
// tensor name alone.
void init_rows(Ops& ops, const ModelConfig& config, uint64_t seed, const WeightSpec& weight,
               int64_t first_row, const Tensor& out);

// Encodes these values into a weight, in its own format. `staging` holds panels.
void init_weight(Ops& ops, const ModelConfig& config, uint64_t seed, Weight& weight,
                 Arena& staging);

}  // namespace jackscrew
