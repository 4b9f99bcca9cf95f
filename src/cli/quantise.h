// Rounding to few bits, for the commands that write models.
#pragma once

#include <string>

#include "base/options.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Whether format is that of a layout which quantize alone knows how to round to: merge and export
// then do as it does.
bool quantises(const OptionSet& options);

// The command quantize. `command` is what errors call it.
int quantise(const Recipe& recipe, const std::string& command);

}  // namespace jackscrew
