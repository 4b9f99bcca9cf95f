// What a GGUF file says about a model, and its tensors by the names of Hugging Face.
#include <cmath>
#include <limits>

#include "base/map_guard.h"
#include "formats/gguf_llama.h"
#include "quant/format.h"
#include "tests/formats/gguf_sample.h"

namespace jackscrew {
namespace {

class GgufLlama : public Gguf {};

TEST_F(GgufLlama, ReadsTheConfiguration) {
  const ModelConfig config = gguf_config(GgufFile(good()));
  EXPECT_EQ(config.vocab_size, 8);  // the embedding has a row more than there are tokens
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_hidden_layers, 1);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_position_embeddings, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token_id, 4);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(config.pad_token_id, -1);
  GgufVariant variant;
  variant.output = false;
  variant.scaling = "linear";
  variant.tokens = false;
  const ModelConfig tied = gguf_config(GgufFile(good(variant)));
  EXPECT_TRUE(tied.tie_word_embeddings);
  EXPECT_EQ(tied.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(tied.rope_scaling.factor, 4.0);
  EXPECT_EQ(tied.vocab_size, 8);
}

// Of Llama 3.1: <|end_of_text|>, <|eot_id|> and <|eom_id|>, each once.
TEST_F(GgufLlama, EveryEndTokenEndsATextOnce) {
  const auto ends = [&](uint32_t eom) {
    GgufBuilder builder = gguf_llama();
    builder.u32("tokenizer.ggml.eom_token_id", eom);
    return gguf_config(GgufFile(put("a.gguf", builder.build()))).eos_token_ids;
  };
  EXPECT_EQ(ends(3), (std::vector<int64_t>{5, 6, 3}));
  EXPECT_EQ(ends(6), (std::vector<int64_t>{5, 6}));
}

// 2^32 - 1 stands for none: so have some files of llama.cpp's own.
TEST_F(GgufLlama, ATokenMayBeNone) {
  GgufBuilder builder = gguf_llama();
  builder.u32("tokenizer.ggml.padding_token_id", UINT32_MAX);
  builder.u32("tokenizer.ggml.unknown_token_id", UINT32_MAX);
  const GgufFile file(put("a.gguf", builder.build()));
  EXPECT_EQ(gguf_config(file).pad_token_id, -1);
  EXPECT_EQ(gguf_tokenizer(file).unk_id, -1);
}

// As llama.cpp takes them.
TEST_F(GgufLlama, SentencePieceHasItsUsualIdsWhereNoneAreNamed) {
  const auto ids = [&](const char* model, const std::vector<std::string>& tokens, bool no_bos) {
    GgufBuilder builder;
    builder.text("tokenizer.ggml.model", model);
    builder.texts("tokenizer.ggml.tokens", tokens);
    if (no_bos) builder.u32("tokenizer.ggml.bos_token_id", UINT32_MAX);
    const GgufTokenizerMetadata read = gguf_tokenizer(GgufFile(put("a.gguf", builder.build())));
    return std::vector{read.bos_id, read.eos_id, read.pad_id};
  };
  using Ids = std::vector<int64_t>;
  for (const bool no_bos : {false, true}) {
    EXPECT_EQ(ids("llama", {"<unk>", "<s>", "</s>"}, no_bos), (Ids{1, 2, -1}));
    EXPECT_EQ(ids("llama", {"<unk>", "<s>"}, no_bos), (Ids{1, -1, -1}));
    EXPECT_EQ(ids("gpt2", {"<unk>", "<s>", "</s>"}, no_bos), (Ids{-1, -1, -1}));
  }
}

// A factor without a type is of linear scaling, as in llama.cpp; one of none is of nothing.
TEST_F(GgufLlama, ScalesLinearlyByAFactorAlone) {
  const auto factor = [&](const char* key, const char* type) {
    GgufBuilder builder = gguf_llama();
    builder.f32(key, 4.0f);
    if (type != nullptr) builder.text("llama.rope.scaling.type", type);
    const RopeScaling scaling = gguf_config(GgufFile(put("a.gguf", builder.build()))).rope_scaling;
    return scaling.kind == RopeScaling::Kind::linear ? scaling.factor : 1.0;
  };
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    EXPECT_EQ(factor(key, nullptr), 4.0) << key;
    EXPECT_EQ(factor(key, "linear"), 4.0) << key;
    EXPECT_EQ(factor(key, "none"), 1.0) << key;
  }
}

// A factor of 0 or none scales nothing, as in llama.cpp.
TEST_F(GgufLlama, ScalesNothingByNoFactor) {
  for (const char* key :
       {"llama.rope.scaling.factor", "llama.rope.scale_linear", "llama.of_another_program"}) {
    GgufBuilder builder = gguf_llama();
    builder.text("llama.rope.scaling.type", "linear");
    builder.f32(key, 0.0f);
    const RopeScaling scaling = gguf_config(GgufFile(put("a.gguf", builder.build()))).rope_scaling;
    EXPECT_EQ(scaling.kind, RopeScaling::Kind::none) << key;
    EXPECT_EQ(scaling.factor, 1.0) << key;
  }
}

TEST_F(GgufLlama, TakesSizesBlockByBlockWhereAllAreEqual) {
  using Sizes = std::vector<uint32_t>;
  const auto file = [&](const Sizes& heads, const Sizes& pairs, const Sizes& widths) {
    GgufBuilder builder;
    builder.text("general.architecture", "llama");
    builder.u32("llama.block_count", 2);
    builder.u32("llama.context_length", 128);
    builder.u32("llama.embedding_length", 64);
    builder.array("llama.feed_forward_length", GgufType::u32, widths);
    builder.array("llama.attention.head_count", GgufType::u32, heads);
    builder.array("llama.attention.head_count_kv", GgufType::u32, pairs);
    builder.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    builder.u32("llama.vocab_size", 8);
    return GgufFile(put("a.gguf", builder.build()));
  };
  const ModelConfig config = gguf_config(file({4, 4}, {2, 2}, {96, 96}));
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.intermediate_size, 96);
  const auto complaint = [&](const Sizes& heads, const Sizes& pairs, const Sizes& widths) {
    return model_error([&] { gguf_config(file(heads, pairs, widths)); });
  };
  EXPECT_TRUE(mentions(complaint({4, 2}, {2, 2}, {96, 96}),
                       "llama.attention.head_count that differs by block is not supported"));
  EXPECT_TRUE(mentions(complaint({4, 4}, {2, 4}, {96, 96}),
                       "llama.attention.head_count_kv that differs by block is not supported"));
  EXPECT_TRUE(mentions(complaint({4, 4}, {2, 2}, {96, 64}),
                       "llama.feed_forward_length that differs by block is not supported"));
  EXPECT_TRUE(mentions(complaint({4, 4}, {2, 2}, {96}),
                       "llama.feed_forward_length has 1 item for 2 blocks"));
  EXPECT_TRUE(mentions(complaint({4, 4}, {2, 2}, {}),
                       "llama.feed_forward_length has 0 items for 2 blocks"));
}

TEST_F(GgufLlama, TakesYarnAsTheFileHasIt) {
  const auto yarn = [&](const auto& add) {
    GgufBuilder builder = gguf_llama();
    builder.text("llama.rope.scaling.type", "yarn");
    builder.f32("llama.rope.scaling.factor", 4.0f);
    add(builder);
    return gguf_config(GgufFile(put("a.gguf", builder.build()))).rope_scaling;
  };
  const auto limits = [](float fast, float slow) {
    return [=](GgufBuilder& builder) {
      builder.f32("llama.rope.scaling.yarn_beta_fast", fast);
      builder.f32("llama.rope.scaling.yarn_beta_slow", slow);
    };
  };
  const RopeScaling plain = yarn([](GgufBuilder&) {});
  EXPECT_EQ(plain.original_max_position_embeddings, 128);  // the context, as in llama.cpp
  EXPECT_EQ(plain.beta_fast, 32.0);
  EXPECT_EQ(plain.beta_slow, 1.0);
  const RopeScaling other = yarn(limits(16.0f, 2.0f));
  EXPECT_EQ(other.beta_fast, 16.0);
  EXPECT_EQ(other.beta_slow, 2.0);
  for (const auto& [fast, slow] : {std::pair(1.0f, 2.0f), std::pair(0.0f, 0.0f)}) {
    EXPECT_EQ(yarn(limits(fast, slow)).beta_fast, 32.0);
    EXPECT_EQ(yarn(limits(fast, slow)).beta_slow, 1.0);
  }
}

TEST_F(GgufLlama, RecognisesTheRopeFactorsOfLlama3) {
  for (const float factor : {8.0f, 32.0f}) {
    GgufVariant variant;
    variant.rope_factors = llama3_factors(factor);
    const RopeScaling scaling = gguf_config(GgufFile(good(variant))).rope_scaling;
    EXPECT_EQ(scaling.kind, RopeScaling::Kind::llama3);
    EXPECT_EQ(scaling.factor, static_cast<double>(factor));
    EXPECT_EQ(scaling.original_max_position_embeddings, 8192);
    EXPECT_EQ(scaling.high_freq_factor, 4.0);
    // Of a context of 4096 before scaling, wavelengths change half way.
    RopeScaling shorter = scaling;
    shorter.original_max_position_embeddings = 4096;
    const double theta = gguf_config(GgufFile(good(variant))).rope_theta;
    for (size_t i = 0; i < variant.rope_factors.size(); ++i) {
      const double exponent =
          static_cast<double>(i) / static_cast<double>(variant.rope_factors.size());
      variant.rope_factors[i] =
          static_cast<float>(llama3_factor(std::pow(theta, -exponent), shorter));
    }
    EXPECT_EQ(gguf_config(GgufFile(good(variant))).rope_scaling.original_max_position_embeddings,
              4096);
    variant.rope_factors = llama3_factors(factor);
    variant.rope_factors[5] = 1.0f;  // below one that is divided
    EXPECT_TRUE(mentions(refused_source(gguf_llama(variant)), "rope_freqs.weight"));
    variant.rope_factors = llama3_factors(factor, 9);
    EXPECT_TRUE(mentions(refused_source(gguf_llama(variant)), "rope_freqs.weight F32 [9]"));
    variant.rope_factors = llama3_factors(factor);
    variant.scaling = "linear";
    EXPECT_TRUE(mentions(refused_source(gguf_llama(variant)), "beside linear"));
  }
  GgufVariant variant;
  variant.rope_factors.assign(8, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(mentions(refused_source(gguf_llama(variant)), "rope_freqs.weight"));
}

// Frequencies are what counts: of a context and two limits only ratios can be found.
TEST_F(GgufLlama, FindsOtherLimitsOfRopeFactors) {
  GgufVariant variant;
  variant.rope_factors.resize(8);
  RopeScaling wanted;
  wanted.kind = RopeScaling::Kind::llama3;
  wanted.factor = 5.0;
  wanted.low_freq_factor = 1.5;
  wanted.high_freq_factor = 300.0;
  wanted.original_max_position_embeddings = 3000;
  const double theta = gguf_config(GgufFile(good())).rope_theta;
  const auto frequency = [&](size_t i) { return std::pow(theta, -static_cast<double>(i) / 8.0); };
  for (size_t i = 0; i < 8; ++i) {
    variant.rope_factors[i] = static_cast<float>(llama3_factor(frequency(i), wanted));
  }
  const RopeScaling found = gguf_config(GgufFile(good(variant))).rope_scaling;
  EXPECT_EQ(found.kind, RopeScaling::Kind::llama3);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(llama3_factor(frequency(i), found), llama3_factor(frequency(i), wanted), 1e-5) << i;
  }
  EXPECT_NEAR(found.high_freq_factor / found.low_freq_factor, 200.0, 0.01);
  variant.rope_factors[4] *= 1.01f;
  EXPECT_TRUE(mentions(refused_source(gguf_llama(variant)), "rope_freqs.weight"));
}

// None, one and two divisors between 1 and the factor: what limits they follow from is not known,
// but what they divide.
TEST_F(GgufLlama, FindsLimitsOfFewRopeFactors) {
  GgufVariant variant;
  variant.rope_factors.resize(8);
  const double theta = gguf_config(GgufFile(good())).rope_theta;
  RopeScaling wanted;
  wanted.kind = RopeScaling::Kind::llama3;
  wanted.factor = 8.0;
  const struct {
    double low, high;
    int64_t between;
  } kCases[] = {{1.0, 1.5, 0}, {1.0, 3.0, 1}, {0.3, 2.0, 2}, {2000.0, 3000.0, 0}};
  for (const auto& limits : kCases) {
    wanted.low_freq_factor = limits.low;
    wanted.high_freq_factor = limits.high;
    const auto divisor = [&](size_t i, const RopeScaling& scaling) {
      return static_cast<float>(
          llama3_factor(std::pow(theta, -static_cast<double>(i) / 8.0), scaling));
    };
    int64_t between = 0;
    for (size_t i = 0; i < 8; ++i) {
      const float factor = variant.rope_factors[i] = divisor(i, wanted);
      if (factor > 1.0f && factor < 8.0f) ++between;
    }
    EXPECT_EQ(between, limits.between);
    const RopeScaling found = gguf_config(GgufFile(good(variant))).rope_scaling;
    EXPECT_EQ(found.kind, RopeScaling::Kind::llama3);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(divisor(i, found), variant.rope_factors[i], 1e-4f) << limits.high << ": " << i;
    }
  }
}

TEST_F(GgufLlama, NamesWhatIsNotLlama) {
  GgufVariant variant;
  variant.architecture = "gemma";
  EXPECT_TRUE(mentions(refused_source(gguf_llama(variant)), "general.architecture gemma"));
  variant = {};
  variant.scaling = "longrope";
  EXPECT_TRUE(mentions(refused_source(gguf_llama(variant)), "llama.rope.scaling.type longrope"));
  variant = {};
  variant.key_rows = 64;
  EXPECT_TRUE(
      mentions(refused_source(gguf_llama(variant)), "blk.0.attn_k.weight of shape [64, 64]"));
  const auto with = [&](auto&& change) {
    GgufBuilder builder = gguf_llama();
    change(builder);
    return refused_source(builder);
  };
  using B = GgufBuilder;
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("llama.expert_count", 8); }), "expert_count"));
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("split.count", 2); }), "split.count"));
  EXPECT_TRUE(mentions(with([](B& b) { b.boolean("llama.attention.causal", false); }),
                       "llama.attention.causal = false is not supported"));
  GgufBuilder later_part;
  later_part.u32("split.no", 1);
  later_part.u32("split.count", 2);
  EXPECT_TRUE(mentions(refused_source(later_part), "join the parts first"));
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("llama.attention.key_length", 32); }),
                       "llama.rope.dimension_count = 16"));
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("tokenizer.ggml.padding_token_id", 7); }),
                       "padding_token_id = 7 is not one of 7 tokens"));
  // As of every other setting, the file that has it is named.
  EXPECT_TRUE(mentions(with([](B& b) { b.f32("llama.rope.scaling.factor", -1.0f); }),
                       "bad.gguf: model config: rope factor = -1"));
  const std::string floats(256, '\0');
  for (const char* name :
       {"blk.0.attn_q.bias", "blk.1.attn_norm.weight", "blk.00.attn_norm.weight",
        "blk.-1.attn_norm.weight", "blk.attn_norm.weight", "blk.0", "v.weight"}) {
    EXPECT_TRUE(mentions(with([&](B& b) { b.tensor(name, kF32, {64}, floats); }),
                         fmt::format("tensor {} is not supported", name)));
  }
}

TEST_F(GgufLlama, SourceUsesTheNamesOfHuggingFace) {
  GgufVariant variant;
  variant.query_type = kQ8_0;
  const GgufSource source(good(variant));
  EXPECT_EQ(
      source.names(),
      (std::vector<std::string>{
          "lm_head.weight", "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
          "model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight", "model.layers.0.post_attention_layernorm.weight",
          "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.o_proj.weight",
          "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.v_proj.weight",
          "model.norm.weight"}));
  const StoredTensor* query = source.find("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(query, nullptr);
  EXPECT_STREQ(query->format->name(), "q8_0");
  EXPECT_EQ(query->interleaved_heads, 4);
  EXPECT_EQ(query->bytes.size(), 64u * 2 * 34);
  EXPECT_EQ(source.find("model.layers.0.self_attn.k_proj.weight")->interleaved_heads, 2);
  const StoredTensor* value = source.find("model.layers.0.self_attn.v_proj.weight");
  EXPECT_EQ(value->interleaved_heads, 0);
  EXPECT_STREQ(value->format->name(), "q4_0");
  EXPECT_EQ(value->shape, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(source.find("model.layers.0.mlp.down_proj.weight")->shape,
            (std::vector<int64_t>{64, 96}));
  EXPECT_EQ(source.find("blk.0.attn_q.weight"), nullptr);
  // A type for what is computed with, not for files; its bytes are never looked at.
  variant.query_type = kQ8_K;
  const auto refusal = [&] {
    const GgufSource odd(good(variant));
    return model_error([&] { odd.find("model.layers.0.self_attn.q_proj.weight"); });
  };
  EXPECT_TRUE(mentions(refusal(), "tensor blk.0.attn_q.weight in Q8_K is not supported"));
  EXPECT_TRUE(mentions(refusal(), "supported: F32, F16, Q4_0"));
  variant.query_type = 4;
  EXPECT_TRUE(mentions(refusal(), "tensor blk.0.attn_q.weight in type 4 is not supported"));
}

TEST_F(GgufLlama, ReadsOtherArchitectures) {
  GgufVariant variant;
  variant.architecture = "qwen2";
  variant.scaling = "yarn";
  const GgufSource qwen2(good(variant));
  EXPECT_STREQ(qwen2.config().architecture->name, "Qwen2ForCausalLM");
  EXPECT_EQ(qwen2.config().rope_scaling.kind, RopeScaling::Kind::yarn);
  EXPECT_EQ(qwen2.config().rope_scaling.original_max_position_embeddings, 32);
  EXPECT_DOUBLE_EQ(qwen2.config().rope_scaling.attention_factor, 0.1 * std::log(4.0) + 1.0);
  // Their rows are in order.
  EXPECT_EQ(qwen2.find("model.layers.0.self_attn.q_proj.weight")->interleaved_heads, 0);
  ASSERT_NE(qwen2.find("model.layers.0.self_attn.k_proj.bias"), nullptr);
  EXPECT_EQ(qwen2.find("model.layers.0.self_attn.k_proj.bias")->shape, std::vector<int64_t>{32});
  variant = {};
  variant.architecture = "qwen3";
  const GgufSource qwen3(good(variant));
  EXPECT_STREQ(qwen3.config().architecture->name, "Qwen3ForCausalLM");
  EXPECT_NE(qwen3.find("model.layers.0.self_attn.q_norm.weight"), nullptr);
  variant.architecture = "smollm3";
  const GgufSource smollm3(good(variant));
  EXPECT_STREQ(smollm3.config().architecture->name, "SmolLM3ForCausalLM");
  EXPECT_EQ(smollm3.config().unrotated, unrotated_every(4, smollm3.config().num_hidden_layers));
  EXPECT_NE(smollm3.find("model.layers.0.self_attn.k_proj.weight")->interleaved_heads, 0);
  GgufBuilder builder = gguf_llama();
  builder.u32("llama.attention.sliding_window", 24);
  const ModelConfig mistral = gguf_config(GgufFile(put("mistral.gguf", builder.build())));
  EXPECT_STREQ(mistral.architecture->name, "MistralForCausalLM");
  EXPECT_EQ(mistral.sliding_window, 24);
}

// Zeros in its place may be read as values, or be a complaint of other damage.
TEST_F(GgufLlama, AFileCutShortAfterItWasMappedIsToldAsSuch) {
  const BusErrors bus_errors;
  const std::string path = good();
  const GgufFile file(path);
  fs::resize_file(path, 0);
  const std::string message = path + ": the file was cut short";
  EXPECT_TRUE(mentions(model_error([&] { gguf_tokenizer(file); }), message));
  EXPECT_TRUE(mentions(model_error([&] { gguf_config(file); }), message));
}

// llama.cpp's converter stores logical row (head, half, i) at (head, i, half).
TEST_F(GgufLlama, InterleavedRowsFollowTheConverter) {
  const GgufSource source(good());
  const StoredTensor* key = source.find("model.layers.0.self_attn.k_proj.weight");
  int64_t row = 0;
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(key->interleaved_row(row++), head * 16 + i * 2 + half);
      }
    }
  }
}

}  // namespace
}  // namespace jackscrew
