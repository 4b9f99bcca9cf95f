// GPTQ as quantize writes it (formats/gptq_writer.h).
#pragma once

#include <memory>

#include "conversion/rounder.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Throws Error(usage) for settings that the layout does not have.
std::unique_ptr<LayoutRounder> make_gptq_rounder(const Recipe& recipe);

}  // namespace jackscrew
