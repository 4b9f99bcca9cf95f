// GGUF's names for the parts of a model of the Llama family, for its reader and its writer.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "model/config.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// The tensor of divisors of the rotary frequencies, one for each pair of a head.
inline constexpr const char* kGgufRopeFactors = "rope_freqs.weight";

// GGUF's name of an architecture, and whether its files interleave the two halves of each head in
// the rows of q and k, so that rotary pairs are neighbours.
struct GgufArchitecture {
  const char* name;
  const char* architecture;
  bool interleaved;
};
inline constexpr GgufArchitecture kGgufArchitectures[] = {{"llama", "LlamaForCausalLM", true},
                                                          {"qwen2", "Qwen2ForCausalLM", false},
                                                          {"qwen3", "Qwen3ForCausalLM", false},
                                                          {"smollm3", "SmolLM3ForCausalLM", true}};

struct GgufName {
  const char* gguf;
  const char* hf;
  bool Architecture::*only = nullptr;  // set: only architectures with this member true have it
};
inline constexpr std::array<GgufName, 3> kGgufModelNames = {
    {{"token_embd.weight", "model.embed_tokens.weight"},
     {"output_norm.weight", "model.norm.weight"},
     {"output.weight", "lm_head.weight"}}};
inline constexpr std::array<GgufName, 14> kGgufLayerNames = {
    {{"attn_norm.weight", "input_layernorm.weight"},
     {"ffn_norm.weight", "post_attention_layernorm.weight"},
     {"attn_q.weight", "self_attn.q_proj.weight"},
     {"attn_k.weight", "self_attn.k_proj.weight"},
     {"attn_v.weight", "self_attn.v_proj.weight"},
     {"attn_output.weight", "self_attn.o_proj.weight"},
     {"attn_q.bias", "self_attn.q_proj.bias", &Architecture::qkv_bias},
     {"attn_k.bias", "self_attn.k_proj.bias", &Architecture::qkv_bias},
     {"attn_v.bias", "self_attn.v_proj.bias", &Architecture::qkv_bias},
     {"attn_q_norm.weight", "self_attn.q_norm.weight", &Architecture::qk_norm},
     {"attn_k_norm.weight", "self_attn.k_norm.weight", &Architecture::qk_norm},
     {"ffn_gate.weight", "mlp.gate_proj.weight"},
     {"ffn_up.weight", "mlp.up_proj.weight"},
     {"ffn_down.weight", "mlp.down_proj.weight"}}};

// The entry of an architecture; Mistral's models are a "llama" with a window.
const GgufArchitecture& gguf_architecture(const Architecture& architecture);

// The GGUF name of a weight: "blk.3.attn_q.weight" for "model.layers.3.self_attn.q_proj.weight".
// Throws Error(model) where GGUF has none.
std::string gguf_name(const WeightSpec& weight);

// The number of heads in which the rows of a weight of that name are interleaved; 0: they are in
// order.
int64_t gguf_interleaved_heads(const ModelConfig& config, std::string_view weight);

}  // namespace jackscrew
