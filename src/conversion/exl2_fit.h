// Finds the highest EXL2 rate at which a training run fits in memory: the weights are frozen and
// held as the reader of such files holds them, and the run is rehearsed over them before they
// exist.
#pragma once

#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

// Whether the rate is to be derived from a training run and the recipe's device_memory instead of
// being given. With a recipe, throws Error(usage) where both are set.
bool exl2_fits_a_run(const OptionSet& options);
bool exl2_fits_a_run(const Recipe& recipe);

// The bytes that the blocks' matrices may take in memory so that the recipe's run fits its
// device_memory; with gradient_checkpointing=auto, activations are recomputed where that leaves
// room for more bits. `recipe` is the run's; `rest` is the storage of the weights that stay plain,
// "bf16" or "f16". Throws Error(does_not_fit) where even the fewest bits take too much,
// Error(usage) where the run does not hold the matrices frozen, so that bits make no difference.
int64_t exl2_bytes_that_fit(const Recipe& recipe, const ModelFiles& files, int64_t head_bits,
                            const std::string& rest);

// Throws Error(does_not_fit) unless the run fits over a model that has been written.
void check_exl2_fits(const Recipe& recipe, const ModelFiles& written);

}  // namespace jackscrew
