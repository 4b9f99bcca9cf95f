// The weights of a model, all in one list: stages are built from it, parameters counted, and
// learners told before any weight exists.
#pragma once

#include <vector>

#include "model/config.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// A range of blocks with or without the embedding and the head.
struct StageSpec {
  int64_t first_block = 0;
  int64_t last_block = 0;  // one past
  bool embedding = true;
  bool head = true;

  static StageSpec whole(const ModelConfig& config) {
    return {0, config.num_hidden_layers, true, true};
  }
};

// In the order of the Hugging Face model. A tied embedding is listed once, where the stage has the
// embedding or the head. Throws Error(generic) when a size overflows.
std::vector<WeightSpec> weights_of(const ModelConfig& config, const StageSpec& stage);

// The head as what multiplies: `lm_head`, be it a weight of its own or the embedding.
WeightSpec head_of(const ModelConfig& config);

// What products multiply: the linear layers of the blocks, and the head.
std::vector<WeightSpec> linears_of(const ModelConfig& config, const StageSpec& stage);

}  // namespace jackscrew
