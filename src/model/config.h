// The hyper-parameters of a model, under the names of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace jackscrew {

// How rotary frequencies are stretched for longer contexts. `llama3` follows the Llama 3.1 release:
// low frequencies are divided by `factor`, high ones kept, those between interpolated.
struct RopeScaling {
  enum class Kind { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;                     // llama3
  double high_freq_factor = 4.0;                    // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3
};

struct ModelConfig {
  std::string architecture = "LlamaForCausalLM";
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  int64_t bos_token_id = -1;           // -1: none
  std::vector<int64_t> eos_token_ids;  // any of them ends a text
  int64_t pad_token_id = -1;           // -1: none

  // Throws Error(model) naming the field when a size is missing, negative, absurd (a factor of more
  // than 2^20 over anything published) or does not divide as the architecture needs.
  void validate() const;

  int64_t parameter_count() const;
};

}  // namespace jackscrew
