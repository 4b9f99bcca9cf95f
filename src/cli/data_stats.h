// `jackscrew data stats`: what a run would make of the data.
#pragma once

#include <vector>

#include "data/data_files.h"
#include "data/dataset.h"
#include "recipe/recipe.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// Reads `places` as a run does and prints how many records, examples and tokens they have, and what
// an epoch of them is; as JSON where the recipe asks for it. Throws what reading them does.
void print_data_stats(const Recipe& recipe, const Tokenizer& tokenizer,
                      const DatasetOptions& options, const std::vector<DataPlace>& places);

}  // namespace jackscrew
