// The hyper-parameters of a model, under the names of Hugging Face's config.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew {

// An architecture of the Llama family: how it differs from the others.
struct Architecture {
  const char* name;        // "Qwen2ForCausalLM"
  const char* model_type;  // "qwen2", of config.json
  bool qkv_bias;           // biases of q_proj, k_proj and v_proj
  bool qk_norm;            // RMSNorm over each head's queries and keys, before they are rotated
  bool nope;               // some blocks do not rotate queries and keys: ModelConfig::unrotated
};
std::span<const Architecture> architectures();
// By name; nullptr when it is not one of them.
const Architecture* find_architecture(std::string_view name);
const Architecture& llama_architecture();

// How rotary frequencies are scaled for longer contexts.
//   linear   all are divided by `factor`
//   dynamic  the base grows with the length beyond max_position_embeddings
//   llama3   as in the Llama 3.1 release: low frequencies are divided by `factor`, high ones kept,
//            those between interpolated
//   yarn     Peng et al. 2023: likewise, with limits given as rotations within the original
//            context; cosines and sines are scaled too
struct RopeScaling {
  enum class Kind { none, linear, dynamic, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;                     // llama3
  double high_freq_factor = 4.0;                    // llama3
  int64_t original_max_position_embeddings = 8192;  // llama3, yarn
  double attention_factor = 1.0;                    // yarn: factor on cosines and sines
  double beta_fast = 32.0;                          // yarn: with more rotations, kept
  double beta_slow = 1.0;                           // yarn: with fewer rotations, divided
  bool truncate = true;                             // yarn: round the limits to whole pairs

  // 0.1 ln(factor) + 1, as Peng et al. recommend.
  static double yarn_attention_factor(double factor);
};

// The names of the kinds of scaling in config.json.
struct RopeType {
  const char* name;
  RopeScaling::Kind kind;
};
inline constexpr RopeType kRopeTypes[] = {{"default", RopeScaling::Kind::none},
                                          {"linear", RopeScaling::Kind::linear},
                                          {"dynamic", RopeScaling::Kind::dynamic},
                                          {"llama3", RopeScaling::Kind::llama3},
                                          {"yarn", RopeScaling::Kind::yarn}};
const char* rope_type_name(RopeScaling::Kind kind);

struct ModelConfig {
  const Architecture* architecture = &llama_architecture();
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
  // How many keys, up to and including its own, a query sees in blocks from `first_sliding_layer`
  // on; 0: all of them.
  int64_t sliding_window = 0;
  int64_t first_sliding_layer = 0;
  // Blocks that do not rotate queries and keys (NoPE; Yang et al. 2025, arXiv 2501.18795): they see
  // no positions but by the causal mask. Empty: none.
  std::vector<bool> unrotated;  // [blocks]
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  int64_t bos_token_id = -1;           // -1: none
  std::vector<int64_t> eos_token_ids;  // any of them ends a text
  int64_t pad_token_id = -1;           // -1: none

  // Throws Error(model) naming the field when a size is missing, negative, absurd (a factor of more
  // than 2^20 over anything published, of 16 for the number of layers) or does not divide as the
  // architecture needs.
  void validate() const;

  int64_t parameter_count() const;
  // The longest sequence that the rotary positions support.
  int64_t longest_sequence() const;
  // Capped at 2^53, which no sequence reaches, for positions are added to it.
  int64_t window_of(int64_t layer) const {
    return layer >= first_sliding_layer ? std::min(sliding_window, int64_t{1} << 53) : 0;
  }
  bool rotates(int64_t layer) const {
    return unrotated.empty() || !unrotated[static_cast<size_t>(layer)];
  }
};

// That every `interval`th block does not rotate. `interval` is positive.
std::vector<bool> unrotated_every(int64_t interval, int64_t layers);
// SmolLM3's, where nothing else is said.
inline constexpr int64_t kUnrotatedInterval = 4;

}  // namespace jackscrew
