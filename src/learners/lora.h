// LoRA (Hu et al. 2021): y += scale * dropout(x) Aᵀ Bᵀ beside frozen weights, where scale is
// alpha / rank, or alpha / sqrt(rank) with rsLoRA (Kalajdzievski 2023). With use_dora the rows of
// W + scale B A have learned lengths. Saved and loaded in PEFT's layout.
#pragma once

#include "learners/learner.h"
#include "learners/lora_options.h"

namespace jackscrew {

std::unique_ptr<Learner> make_lora_learner(const OptionSet& options);

}  // namespace jackscrew
