// The highest rate of EXL2 with which a training run fits: weights are frozen as the reader of such
// files holds them, and the run is rehearsed over them before there are any.
#pragma once

#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

// Whether the rate is to be found for a training run, with the recipe's device_memory, rather than
// given. Throws Error(usage) where both are.
bool exl2_fits_a_run(const Recipe& recipe);

// The bytes that the blocks' matrices may hold so that the recipe's run fits its device_memory;
// with gradient_checkpointing=auto, activations are recomputed where that leaves room for more
// bits. `recipe` is that of the run; `rest` the storage of what stays plain, "bf16" or "f16".
// Throws Error(does_not_fit) where even the fewest bits take too much, Error(usage) where the run
// does not hold the matrices frozen, and bits make no difference.
int64_t exl2_bytes_that_fit(const Recipe& recipe, const ModelFiles& files, int64_t head_bits,
                            const std::string& rest);

// Throws Error(does_not_fit) unless the run fits over a model that is written.
void check_exl2_fits(const Recipe& recipe, const ModelFiles& written);

}  // namespace jackscrew
