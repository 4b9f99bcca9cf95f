// The model that benchmarks run when none is named.
#pragma once

#include "train/model_files.h"

namespace jackscrew {

// SmolLM2-135M's shape, without weights.
inline ModelFiles smollm2_shape() {
  ModelFiles files;
  files.origin = "SmolLM2-135M's shape";
  files.config.vocab_size = 49152;
  files.config.hidden_size = 576;
  files.config.intermediate_size = 1536;
  files.config.num_hidden_layers = 30;
  files.config.num_attention_heads = 9;
  files.config.num_key_value_heads = 3;
  files.config.head_dim = 64;
  files.config.rms_norm_eps = 1e-5;
  files.config.rope_theta = 100000.0;
  files.config.tie_word_embeddings = true;
  return files;
}

}  // namespace jackscrew
