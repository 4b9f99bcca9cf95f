// A small GGUF file of Llama, whole or with something wrong, and what the tests of such files
// share.
#pragma once

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "formats/gguf_llama.h"
#include "tests/formats/gguf_builder.h"
#include "tests/formats/support.h"

namespace jackscrew {

inline constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kQ8_K = 15;

// What differs from a good file.
struct GgufVariant {
  std::string architecture = "llama";
  std::string scaling;              // llama.rope.scaling.type
  std::vector<float> rope_factors;  // rope_freqs.weight
  bool output = true;
  bool tokens = true;
  uint32_t query_type = kF32;
  uint32_t key_rows = 32;
};

// One layer, hidden size 64, 4 heads of 16, 2 of keys and values, 8 tokens.
inline GgufBuilder gguf_llama(const GgufVariant& variant = {}) {
  GgufBuilder out;
  const std::string& own = variant.architecture;
  out.text("general.architecture", variant.architecture);
  out.u32(own + ".block_count", 1);
  out.u32(own + ".context_length", 128);
  out.u32(own + ".embedding_length", 64);
  out.u32(own + ".feed_forward_length", 96);
  out.u32(own + ".attention.head_count", 4);
  out.u32(own + ".attention.head_count_kv", 2);
  out.u32(own + ".rope.dimension_count", 16);
  out.f32(own + ".attention.layer_norm_rms_epsilon", 1e-5f);
  out.f32(own + ".rope.freq_base", 500000.0f);
  if (!variant.scaling.empty()) {
    out.text(own + ".rope.scaling.type", variant.scaling);
    out.f32(own + ".rope.scaling.factor", 4.0f);
    out.u32(own + ".rope.scaling.original_context_length", 32);
  }
  if (variant.tokens) {
    out.text("tokenizer.ggml.model", "gpt2");
    out.text("tokenizer.ggml.pre", "llama-bpe");
    out.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "", "<s>", "</s>", "<eot>"});
    out.array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 1, 1, 1, 3, 3, 3});
    out.array<float>("tokenizer.ggml.scores", GgufType::f32, {0, 0, -0.1f, 0, 0, 0, 0});
    out.texts("tokenizer.ggml.merges", {"a b"});
    out.boolean("tokenizer.ggml.add_bos_token", true);
    out.text("tokenizer.chat_template", "{{ x }}");
  }
  out.u32("tokenizer.ggml.bos_token_id", 4);
  out.u32("tokenizer.ggml.eos_token_id", 5);
  out.u32("tokenizer.ggml.eot_token_id", 6);
  const auto floats = [&](const std::string& name, std::vector<uint64_t> extents) {
    uint64_t bytes = 4;
    for (const uint64_t extent : extents) bytes *= extent;
    out.tensor(name, kF32, extents, std::string(bytes, '\1'));
  };
  floats("token_embd.weight", {64, 8});
  floats("blk.0.attn_norm.weight", {64});
  floats("blk.0.ffn_norm.weight", {64});
  const uint64_t query_bytes = variant.query_type == kQ8_0 ? 64 * 2 * 34 : 64 * 64 * 4;
  out.tensor("blk.0.attn_q.weight", variant.query_type, {64, 64}, std::string(query_bytes, '\2'));
  floats("blk.0.attn_k.weight", {64, variant.key_rows});
  out.tensor("blk.0.attn_v.weight", kQ4_0, {64, 32}, std::string(32 * 2 * 18, '\3'));
  out.tensor("blk.0.attn_output.weight", kF16, {64, 64}, std::string(64 * 64 * 2, '\4'));
  if (own == "qwen2") {
    floats("blk.0.attn_q.bias", {64});
    floats("blk.0.attn_k.bias", {32});
    floats("blk.0.attn_v.bias", {32});
  }
  if (own == "qwen3") {
    floats("blk.0.attn_q_norm.weight", {16});
    floats("blk.0.attn_k_norm.weight", {16});
  }
  floats("blk.0.ffn_gate.weight", {64, 96});
  floats("blk.0.ffn_up.weight", {64, 96});
  floats("blk.0.ffn_down.weight", {96, 64});
  floats("output_norm.weight", {64});
  if (variant.output) floats("output.weight", {64, 8});
  if (!variant.rope_factors.empty()) {
    std::string bytes;
    for (const float factor : variant.rope_factors) bytes += GgufBuilder::raw(factor);
    out.tensor("rope_freqs.weight", kF32, {variant.rope_factors.size()}, bytes);
  }
  return out;
}

// The divisors of Llama 3.1 for theta 500000, in single precision as converters compute them.
inline std::vector<float> llama3_factors(float factor, int pairs = 8) {
  std::vector<float> out;
  for (int i = 0; i < pairs; ++i) {
    const float frequency =
        1.0f / std::pow(500000.0f, static_cast<float>(i) / static_cast<float>(pairs));
    const float wavelength = 2.0f * std::numbers::pi_v<float> / frequency;
    if (wavelength < 8192.0f / 4.0f) {
      out.push_back(1.0f);
    } else if (wavelength > 8192.0f) {
      out.push_back(factor);
    } else {
      const float smooth = (8192.0f / wavelength - 1.0f) / 3.0f;
      out.push_back(1.0f / ((1.0f - smooth) / factor + smooth));
    }
  }
  return out;
}

class Gguf : public FormatsTest {
 protected:
  fs::path good(const GgufVariant& variant = {}) const {
    return put("a.gguf", gguf_llama(variant).build());
  }
  std::string refused(const std::string& bytes) const {
    const fs::path path = put("bad.gguf", bytes);
    return model_error([&] { GgufFile file(path); });
  }
  std::string refused(const GgufBuilder& builder) const { return refused(builder.build()); }
  std::string refused_source(const GgufBuilder& builder) const {
    const fs::path path = put("bad.gguf", builder.build());
    return model_error([&] { GgufSource source(path); });
  }
};

}  // namespace jackscrew
