// Storage formats as quantize writes them: types of GGUF, and NF4.
#pragma once

#include <memory>
#include <vector>

#include "conversion/rounder.h"
#include "conversion/write_model.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Throws Error(usage) for settings that such files do not have, whatever the model is.
void check_storage_rounding(const Recipe& recipe, ModelFormat files);

// `tensors`: the model's weights as they will be written. Linear layers of the blocks whose format
// has blocks are rounded.
std::unique_ptr<Rounder> make_storage_rounder(const Recipe& recipe, ModelFormat files,
                                              const std::vector<ModelTensor>& tensors);

}  // namespace jackscrew
