// Storage formats as quantize writes them: types of GGUF, and NF4.
#pragma once

#include <memory>
#include <vector>

#include "conversion/rate_fit.h"
#include "conversion/rounder.h"
#include "conversion/write_model.h"
#include "recipe/recipe.h"

namespace jackscrew {

class StorageRounder : public Rounder {
 public:
  // The format of a weight that is rounded, by now; null for others.
  virtual const Format* format_of(const WeightSpec& weight) const = 0;
};

// The storage of all that mixed types do not apply to: embedding and head.
inline constexpr const char* kMixedRest = "q6_k";
// The types of GGUF among which one is chosen for a matrix; none if it cannot be quantised.
std::vector<const Format*> mixed_types(const WeightSpec& weight);

// Throws Error(usage) for settings that such files do not have, whatever the model is. `is_mixed`:
// types are to be chosen for a rate, instead of being the recipe's storage.
void check_storage_rounding(const Recipe& recipe, ModelFormat files, bool is_mixed);

// Rounds the linear layers of the blocks to the formats in which they will be written: `tensors`
// are the model's weights. Those whose format has no blocks (block_rounding.h) are not rounded.
std::unique_ptr<StorageRounder> make_storage_rounder(const Recipe& recipe, ModelFormat files,
                                                     const std::vector<ModelTensor>& tensors);
// Rounds each of them to one of its mixed_types(), chosen so that the total error is least.
// `formats` are those types or, of a matrix that has none, what it is written in: that counts in
// the limit, too. Throws what MixedRates::check() throws.
std::unique_ptr<StorageRounder> make_mixed_rounder(const Recipe& recipe, const ModelConfig& config,
                                                   const HeldFormats& formats,
                                                   const RateLimit& limit);

}  // namespace jackscrew
