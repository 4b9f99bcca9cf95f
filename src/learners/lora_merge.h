// LoRA and DoRA merged into their weights.
#pragma once

#include "learners/adapter_merge.h"
#include "learners/lora_options.h"

namespace jackscrew {

// W + scale B A; with DoRA its rows brought to their lengths; what is saved whole in W's place.
// Throws as `tensors` does.
WeightMerge lora_merge(const LoraSettings& settings, const WeightSpec& weight,
                       const AdapterValues& tensors);

}  // namespace jackscrew
