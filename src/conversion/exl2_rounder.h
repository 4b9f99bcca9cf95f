// EXL2 as quantize writes it (formats/exl2_writer.h): of every matrix the mixture of bits by which
// all together lose least at a given rate.
#pragma once

#include <memory>
#include <optional>

#include "conversion/rounder.h"
#include "model/config.h"
#include "recipe/recipe.h"

namespace jackscrew {

// What the matrices of the blocks may take together: so many bits an element in the files, all
// counted that is stored of them (codes, scales, order of columns, padding); or so many bytes in
// memory.
struct Exl2Limit {
  double bits = 0;
  std::optional<int64_t> held_bytes;  // instead
};

// Throws Error(usage) for settings that the layout does not have and for a rate that no mixture
// reaches, Error(does_not_fit) where that is so of bytes, Error(model) for a matrix that it cannot
// have.
std::unique_ptr<Rounder> make_exl2_rounder(const Recipe& recipe, const ModelConfig& config,
                                           const Exl2Limit& limit);

}  // namespace jackscrew
