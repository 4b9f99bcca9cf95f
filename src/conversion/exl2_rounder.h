// EXL2 as quantize writes it (formats/exl2_writer.h): each matrix gets a mixture of bit widths,
// chosen so that the total error is least at a given rate.
#pragma once

#include <memory>

#include "conversion/mixed_rates.h"
#include "conversion/rounder.h"
#include "model/config.h"
#include "recipe/recipe.h"

namespace jackscrew {

// The formats in which the reader of such files holds a weight: of a block matrix, all that may be
// chosen. `rest` is the storage of weights that stay plain, "bf16" or "f16".
std::vector<FormatPointer> exl2_held_formats(const WeightSpec& weight, int64_t head_bits,
                                             const std::string& rest);

// Throws Error(usage) for settings that the layout does not have and for a rate that no mixture
// reaches, Error(does_not_fit) where no mixture reaches the bytes, Error(model) for a matrix that
// the layout cannot hold.
std::unique_ptr<LayoutRounder> make_exl2_rounder(const Recipe& recipe, const ModelConfig& config,
                                                 const RateLimit& limit);

}  // namespace jackscrew
