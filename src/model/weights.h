// The list of a model's weights. Stages are built from it, parameters are counted with it, and
// learners plan with it before any weight exists.
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

// The weights of a stage, in the order of the Hugging Face model. A tied embedding is listed once
// if the stage has the embedding or the head. Throws Error(generic) when a size overflows.
std::vector<WeightSpec> weights_of(const ModelConfig& config, const StageSpec& stage);

// The head as products know it: `lm_head`, whether it is a weight of its own or the embedding.
WeightSpec head_of(const ModelConfig& config);

// The weights that products multiply: the linear layers of the blocks, and the head.
std::vector<WeightSpec> linears_of(const ModelConfig& config, const StageSpec& stage);

}  // namespace jackscrew
