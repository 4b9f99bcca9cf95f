// Weights before training from scratch.
#pragma once

#include "learners/learner.h"
#include "model/config.h"

namespace jackscrew {

// Writes rows [first_row, first_row + rows of out) of a weight's first values to out, f32: norms
// are 1, biases 0, everything else normal with the configuration's initializer_range, as
// transformers initialises a Llama. The numbers depend on seed and tensor name alone.
void init_rows(Ops& ops, const ModelConfig& config, uint64_t seed, const WeightSpec& weight,
               int64_t first_row, const Tensor& out);

// Fills a weight with them, in its own format. `staging` holds panels.
void init_weight(Ops& ops, const ModelConfig& config, uint64_t seed, Weight& weight,
                 Arena& staging);

}  // namespace jackscrew
