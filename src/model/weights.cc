#include "model/weights.h"

#include <fmt/format.h>

#include "base/checked.h"

namespace jackscrew {

namespace {

void add_block(const ModelConfig& config, int64_t layer, std::vector<WeightSpec>& out) {
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.intermediate_size;
  const int64_t query = checked_mul(config.num_attention_heads, config.head_dim);
  const int64_t key_value = checked_mul(config.num_key_value_heads, config.head_dim);
  const std::string base = fmt::format("model.layers.{}.", layer);
  const auto norm = [&](const char* group, const char* module, int64_t size) {
    out.push_back({base + group + module + ".weight", 1, size, WeightKind::norm, layer, module});
  };
  const auto linear = [&](const char* group, const char* module, int64_t rows, int64_t cols) {
    out.push_back(
        {base + group + module + ".weight", rows, cols, WeightKind::linear, layer, module});
  };
  const auto projection = [&](const char* module, int64_t rows) {
    linear("self_attn.", module, rows, hidden);
    if (!config.architecture->qkv_bias) return;
    out.push_back(
        {base + "self_attn." + module + ".bias", 1, rows, WeightKind::bias, layer, module});
  };
  norm("", "input_layernorm", hidden);
  projection("q_proj", query);
  projection("k_proj", key_value);
  projection("v_proj", key_value);
  linear("self_attn.", "o_proj", hidden, query);
  if (config.architecture->qk_norm) {
    norm("self_attn.", "q_norm", config.head_dim);
    norm("self_attn.", "k_norm", config.head_dim);
  }
  norm("", "post_attention_layernorm", hidden);
  linear("mlp.", "gate_proj", width, hidden);
  linear("mlp.", "up_proj", width, hidden);
  linear("mlp.", "down_proj", hidden, width);
}

}  // namespace

std::vector<WeightSpec> weights_of(const ModelConfig& config, const StageSpec& stage) {
  std::vector<WeightSpec> out;
  if (stage.embedding || (stage.head && config.tie_word_embeddings)) {
    out.push_back({"model.embed_tokens.weight", config.vocab_size, config.hidden_size,
                   WeightKind::embedding, -1, "embed_tokens"});
  }
  for (int64_t layer = stage.first_block; layer < stage.last_block; ++layer) {
    add_block(config, layer, out);
  }
  if (!stage.head) return out;
  out.push_back({"model.norm.weight", 1, config.hidden_size, WeightKind::norm, -1, "norm"});
  if (!config.tie_word_embeddings) out.push_back(head_of(config));
  return out;
}

WeightSpec head_of(const ModelConfig& config) {
  return {"lm_head.weight", config.vocab_size, config.hidden_size, WeightKind::linear, -1,
          "lm_head"};
}

std::vector<WeightSpec> linears_of(const ModelConfig& config, const StageSpec& stage) {
  std::vector<WeightSpec> out = weights_of(config, stage);
  std::erase_if(out, [](const WeightSpec& weight) { return weight.kind != WeightKind::linear; });
  if (stage.head && config.tie_word_embeddings) out.push_back(head_of(config));
  return out;
}

}  // namespace jackscrew
