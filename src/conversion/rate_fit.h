// Finds the highest rate at which a training run fits in memory: the weights are frozen and held as
// the reader of the files holds them, and the run is rehearsed over them before they exist.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conversion/mixed_rates.h"
#include "quant/format.h"
#include "quant/weight_spec.h"
#include "recipe/recipe.h"
#include "session/model_files.h"

namespace jackscrew {

// Whether quantize chooses among types of GGUF for a rate, rather than being given a storage.
bool mixes_gguf_types(const OptionSet& options);

// Whether the rate is to be derived from a training run and the recipe's device_memory, or
// rank_device_memory, instead of being given.
bool rate_fits_a_run(const OptionSet& options);
// Throws Error(usage) where it is to be both derived and given.
void require_one_rate(const OptionSet& options);

// The formats in which a run may come to hold a weight; of weights that are not in blocks, one.
using HeldFormats = std::function<std::vector<FormatPointer>(const WeightSpec&)>;

// The bytes that the blocks' matrices may take in memory, stage by stage, so that the recipe's run
// by recipe.ranks ranks fits the device_memory of each; with gradient_checkpointing=auto,
// activations are recomputed where that leaves room for more bits. `recipe` is the run's; `config`
// is of the model as it will be written. Throws Error(does_not_fit) where even the fewest bits take
// too much, Error(usage) where the run does not hold the matrices frozen, so that bits make no
// difference, and as plan_ranks().
std::vector<StageLimit> limits_that_fit(const Recipe& recipe, const std::string& origin,
                                        const ModelConfig& config, const HeldFormats& formats);

// Throws Error(does_not_fit) unless the run fits over a model that has been written.
void check_fits(const Recipe& recipe, const ModelFiles& written);

}  // namespace jackscrew
