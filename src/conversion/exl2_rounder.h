// EXL2 as quantize writes it (formats/exl2_writer.h): each matrix gets a mixture of bit widths,
// chosen so that the total error is least at a given rate.
#pragma once

#include <memory>
#include <optional>

#include "conversion/rounder.h"
#include "model/config.h"
#include "recipe/recipe.h"

namespace jackscrew {

// The limit for the blocks' matrices together: bits per element in the files, with everything
// stored counted (codes, scales, order of columns, padding); or bytes in memory.
struct Exl2Limit {
  double bits = 0;
  std::optional<int64_t> memory_bytes;  // replaces `bits` if set
};

// Throws Error(usage) for settings that the layout does not have and for a rate that no mixture
// reaches, Error(does_not_fit) where no mixture reaches the bytes, Error(model) for a matrix that
// the layout cannot hold.
std::unique_ptr<Rounder> make_exl2_rounder(const Recipe& recipe, const ModelConfig& config,
                                           const Exl2Limit& limit);

}  // namespace jackscrew
