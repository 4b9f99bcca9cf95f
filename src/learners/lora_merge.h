// Merges LoRA and DoRA adapters into their weights.
#pragma once

#include "learners/adapter_merge.h"
#include "learners/lora_options.h"

namespace jackscrew {

// Gives W + scale B A, with its rows rescaled to their learned lengths for DoRA; a weight that was
// saved as a whole replaces W. Empty for a weight without either. Throws as `tensors` does.
WeightMerge lora_merge(const LoraSettings& settings, const WeightSpec& weight,
                       const AdapterValues& tensors);

}  // namespace jackscrew
