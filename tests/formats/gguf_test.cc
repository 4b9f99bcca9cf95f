#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <limits>
#include <numbers>

#include "quant/format.h"
#include "tests/formats/gguf_builder.h"
#include "tests/formats/support.h"

namespace jackscrew {
namespace {

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kQ8_K = 15;

// What differs from a good file.
struct Variant {
  std::string architecture = "llama";
  std::string scaling;              // llama.rope.scaling.type
  std::vector<float> rope_factors;  // rope_freqs.weight
  bool output = true;
  bool tokens = true;
  uint32_t query_type = kF32;
  uint32_t key_rows = 32;
};

// One layer, hidden size 64, 4 heads of 16, 2 of keys and values, 8 tokens.
GgufBuilder llama(const Variant& variant = {}) {
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
std::vector<float> llama3_factors(float factor, int pairs = 8) {
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
  fs::path good(const Variant& variant = {}) const { return put("a.gguf", llama(variant).build()); }
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

TEST_F(Gguf, ReadsEveryTypeOfValue) {
  GgufBuilder builder;
  builder.entry("u8", GgufType::u8, GgufBuilder::raw<uint8_t>(200));
  builder.entry("i8", GgufType::i8, GgufBuilder::raw<int8_t>(-100));
  builder.entry("u16", GgufType::u16, GgufBuilder::raw<uint16_t>(60000));
  builder.entry("i16", GgufType::i16, GgufBuilder::raw<int16_t>(-30000));
  builder.u32("u32", 4000000000u);
  builder.entry("i32", GgufType::i32, GgufBuilder::raw<int32_t>(-2000000000));
  builder.entry("u64", GgufType::u64, GgufBuilder::raw<uint64_t>(uint64_t{1} << 62));
  builder.entry("huge", GgufType::u64, GgufBuilder::raw<uint64_t>(uint64_t{1} << 63));
  builder.entry("i64", GgufType::i64, GgufBuilder::raw<int64_t>(-(int64_t{1} << 62)));
  builder.f32("f32", 1e-5f);
  builder.entry("f64", GgufType::f64, GgufBuilder::raw<double>(0.1));
  builder.boolean("yes", true);
  builder.text("text", "hello");
  builder.text("blank", "");
  builder.texts("texts", {"x", "", "yz"});
  builder.texts("no texts", {});
  builder.array<int16_t>("i16s", GgufType::i16, {-1, 2});
  builder.array<double>("f64s", GgufType::f64, {0.5, 1.5});
  builder.array<uint8_t>("bools", GgufType::boolean, {1, 0});
  for (const uint32_t version : {2u, 3u}) {
    builder.version = version;
    const GgufFile file(put("a.gguf", builder.build()));
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.integer("u8"), 200);
    EXPECT_EQ(file.integer("i8"), -100);
    EXPECT_EQ(file.integer("u16"), 60000);
    EXPECT_EQ(file.integer("i16"), -30000);
    EXPECT_EQ(file.integer("u32"), 4000000000);
    EXPECT_EQ(file.integer("i32"), -2000000000);
    EXPECT_EQ(file.integer("u64"), int64_t{1} << 62);
    EXPECT_EQ(file.integer("i64"), -(int64_t{1} << 62));
    EXPECT_EQ(file.number("f32"), 1e-5);
    EXPECT_EQ(file.number("f64"), 0.1);
    EXPECT_EQ(file.number("u8"), 200.0);
    EXPECT_TRUE(file.boolean("yes"));
    EXPECT_EQ(file.text("text"), "hello");
    EXPECT_EQ(file.text("blank"), "");
    EXPECT_EQ(file.texts("texts"), (std::vector<std::string>{"x", "", "yz"}));
    EXPECT_TRUE(file.texts("no texts").empty());
    EXPECT_EQ(file.integers("i16s"), (std::vector<int64_t>{-1, 2}));
    EXPECT_EQ(file.numbers("f64s"), (std::vector<double>{0.5, 1.5}));
    EXPECT_EQ(file.booleans("bools"), (std::vector<bool>{true, false}));
    EXPECT_EQ(file.keys().size(), 19u);
    EXPECT_EQ(file.type("i16s"), GgufType::array);
    EXPECT_EQ(file.type("none"), std::nullopt);

    EXPECT_EQ(file.integer("none", 7), 7);
    EXPECT_EQ(file.text("none", "x"), "x");
    EXPECT_TRUE(file.integers("none").empty());
    EXPECT_TRUE(mentions(model_error([&] { file.integer("none"); }), "none is missing"));
    EXPECT_TRUE(mentions(model_error([&] { file.integer("huge"); }), "huge = 9223372036854775808"));
    EXPECT_TRUE(mentions(model_error([&] { file.integer("f32"); }), "f32 is not an integer"));
    EXPECT_TRUE(mentions(model_error([&] { file.integer("text", 1); }), "not an integer"));
    EXPECT_TRUE(mentions(model_error([&] { file.number("text"); }), "text is not a number"));
    EXPECT_TRUE(mentions(model_error([&] { file.number("f64s"); }), "f64s is not a number"));
    EXPECT_TRUE(mentions(model_error([&] { file.boolean("u8"); }), "u8 is not a boolean"));
    EXPECT_TRUE(mentions(model_error([&] { file.text("texts"); }), "texts is not a string"));
    EXPECT_TRUE(mentions(model_error([&] { file.texts("text"); }), "text is not an array"));
    EXPECT_TRUE(mentions(model_error([&] { file.texts("i16s"); }), "not an array of strings"));
    EXPECT_TRUE(mentions(model_error([&] { file.integers("texts"); }), "not an integer"));
    EXPECT_TRUE(mentions(model_error([&] { file.booleans("i16s"); }), "not an array of booleans"));
  }
}

TEST_F(Gguf, ReadsTensorsAtTheirAlignment) {
  GgufBuilder builder;
  builder.alignment = 256;
  builder.u32("general.alignment", 256);
  builder.tensor("one", kF32, {3}, std::string(12, 'a'));
  builder.tensor("two", kQ8_0, {32, 2, 3}, std::string(6 * 34, 'b'));
  builder.tensor("odd", kQ8_K, {256}, std::string(292, 'c'));
  const GgufFile file(put("a.gguf", builder.build()));
  const GgufTensor* two = file.find("two");
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->shape, (std::vector<int64_t>{3, 2, 32}));
  EXPECT_EQ(two->format, "q8_0");
  EXPECT_EQ(two->offset % 256, 0);
  EXPECT_EQ(two->bytes.size(), 6u * 34);
  EXPECT_EQ(two->bytes[0], 'b');
  EXPECT_EQ(file.find("odd")->format, "");
  EXPECT_TRUE(file.find("odd")->bytes.empty());
  EXPECT_EQ(file.find("three"), nullptr);
  EXPECT_EQ(ggml_type_name(kQ8_K), "Q8_K");
  EXPECT_EQ(ggml_type_name(30), "BF16");
  EXPECT_EQ(ggml_type_name(4), "type 4");
  EXPECT_EQ(ggml_type_name(99), "type 99");
}

// Every type that is read has a storage format of its name, and both have the same idea of its
// size.
TEST_F(Gguf, TypesAreStorageFormats) {
  int64_t read = 0;
  for (uint32_t type = 0; type < 64; ++type) {
    GgufBuilder builder;
    builder.tensor("one", type, {256, 3}, std::string(3 * 256 * 4, 'a'));
    const GgufFile file(put("a.gguf", builder.build()));
    const GgufTensor& tensor = *file.find("one");
    if (tensor.format.empty()) continue;
    ++read;
    std::string name = ggml_type_name(type);
    EXPECT_NE(readable_ggml_types().find(name), std::string::npos);
    for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
    EXPECT_EQ(tensor.format, name);
    EXPECT_EQ(static_cast<int64_t>(tensor.bytes.size()), find_format(name).storage_bytes(3, 256))
        << name;
  }
  EXPECT_EQ(read, 26);
}

TEST_F(Gguf, NamesWhatIsWrongWithAFile) {
  EXPECT_TRUE(mentions(refused(""), "file ends inside its magic number"));
  EXPECT_TRUE(mentions(refused("GGML and more"), "is not a GGUF file"));
  const auto version = [](uint32_t number) {
    GgufBuilder builder;
    builder.version = number;
    return builder;
  };
  EXPECT_TRUE(mentions(refused(version(1)), "GGUF version 1 | supported"));
  EXPECT_TRUE(mentions(refused(version(4)), "GGUF version 4"));
  EXPECT_TRUE(mentions(refused(version(0x03000000)), "big-endian"));
  for (const uint64_t extra : {uint64_t{1} << 20, uint64_t{1} << 40, ~uint64_t{0} - 100}) {
    GgufBuilder builder = llama();
    builder.extra_values = extra;
    EXPECT_TRUE(mentions(refused(builder), "metadata entries in"));
    builder.extra_values = 0;
    builder.extra_tensors = extra;
    EXPECT_TRUE(mentions(refused(builder), "tensors described in"));
  }
  const auto value = [&](GgufType type, const std::string& bytes) {
    GgufBuilder builder;
    builder.entry("key", type, bytes);
    return refused(builder.build() + std::string(64, '\0'));
  };
  using B = GgufBuilder;
  const uint64_t many = uint64_t{1} << 61;
  EXPECT_TRUE(mentions(value(static_cast<GgufType>(13), ""), "key is of unknown type 13"));
  EXPECT_TRUE(mentions(value(GgufType::string, B::raw(many)), "file ends inside key"));
  EXPECT_TRUE(mentions(value(GgufType::string, B::raw(~uint64_t{0})), "file ends inside key"));
  EXPECT_TRUE(mentions(value(GgufType::array, B::number(GgufType::array) + B::raw(uint64_t{1})),
                       "key is of an array of type 9"));
  EXPECT_TRUE(mentions(value(GgufType::array, B::number(GgufType::u32) + B::raw(many)),
                       "2305843009213693952 elements"));
  EXPECT_TRUE(mentions(value(GgufType::array, B::number(GgufType::string) + B::raw(many)),
                       "file ends inside key"));
  GgufBuilder twice;
  twice.u32("key", 1);
  twice.u32("key", 2);
  EXPECT_TRUE(mentions(refused(twice), "key appears twice"));
  GgufBuilder nameless;
  nameless.u32("", 1);
  EXPECT_TRUE(mentions(refused(nameless), "a metadata key of 0 bytes"));
}

TEST_F(Gguf, NamesTheTensorThatIsWrong) {
  const auto tensor = [&](const std::vector<uint64_t>& extents, uint32_t type = kF32,
                          uint64_t offset = 0, uint32_t alignment = 32) {
    GgufBuilder builder;
    builder.u32("general.alignment", alignment);
    builder.tensor_at("t", type, extents, offset);
    return refused(builder.build() + std::string(256, '\0'));
  };
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_TRUE(mentions(tensor({}), "tensor t has 0 dimensions"));
  EXPECT_TRUE(mentions(tensor({1, 1, 1, 1, 1}), "tensor t has 5 dimensions"));
  EXPECT_TRUE(mentions(tensor({0}), "extent of 0"));
  EXPECT_TRUE(mentions(tensor({~uint64_t{0}}), "extent of 18446744073709551615"));
  EXPECT_TRUE(mentions(tensor({big, big}), "[4294967296, 4294967296] cannot be stored as F32"));
  EXPECT_TRUE(mentions(tensor({big, big / 4}), "reaches past the end"));
  EXPECT_TRUE(mentions(tensor({65}), "reaches past the end"));
  EXPECT_TRUE(mentions(tensor({33}, kQ8_0), "tensor t of shape [33] cannot be stored as Q8_0"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 8), "not aligned to 32"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, big), "past the end"));
  EXPECT_TRUE(mentions(tensor({4}, 99, 352), "past the end"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, ~uint64_t{0}), "past the end"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 0, 0), "general.alignment = 0"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 0, 48), "general.alignment = 48"));
  EXPECT_TRUE(mentions(tensor({4}, kF32, 0, 1u << 31), "general.alignment = 2147483648"));
  GgufBuilder two;
  two.tensor_at("t", kF32, {16}, 0);
  two.tensor_at("u", kF32, {8}, 32);
  EXPECT_TRUE(mentions(refused(two.build() + std::string(64, '\0')), "tensors t and u overlap"));
  GgufBuilder twice;
  twice.tensor_at("t", kF32, {8}, 0);
  twice.tensor_at("t", kF32, {8}, 32);
  EXPECT_TRUE(mentions(refused(twice.build() + std::string(64, '\0')), "tensor t appears twice"));
}

TEST_F(Gguf, SurvivesDamage) {
  Variant variant;
  variant.rope_factors = llama3_factors(8.0f);
  const GgufBuilder builder = llama(variant);
  const auto read = [](const fs::path& path) {
    const GgufSource source(path);
    gguf_tokenizer(source.file());
    for (const std::string& name : source.names()) {
      const StoredTensor* tensor = source.find(name);
      source.release(*tensor);
    }
  };
  damage(directory_ / "bad.gguf", builder.build(), builder.header().size(), read);
}

TEST_F(Gguf, ReadsTheConfiguration) {
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
  Variant variant;
  variant.output = false;
  variant.scaling = "linear";
  variant.tokens = false;
  const ModelConfig tied = gguf_config(GgufFile(good(variant)));
  EXPECT_TRUE(tied.tie_word_embeddings);
  EXPECT_EQ(tied.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(tied.rope_scaling.factor, 4.0);
  EXPECT_EQ(tied.vocab_size, 8);
}

TEST_F(Gguf, RecognisesTheRopeFactorsOfLlama3) {
  for (const float factor : {8.0f, 32.0f}) {
    Variant variant;
    variant.rope_factors = llama3_factors(factor);
    const RopeScaling scaling = gguf_config(GgufFile(good(variant))).rope_scaling;
    EXPECT_EQ(scaling.kind, RopeScaling::Kind::llama3);
    EXPECT_EQ(scaling.factor, static_cast<double>(factor));
    EXPECT_EQ(scaling.original_max_position_embeddings, 8192);
    variant.rope_factors[4] += 0.5f;
    EXPECT_TRUE(mentions(refused_source(llama(variant)), "rope_freqs.weight"));
    variant.rope_factors = llama3_factors(factor, 9);
    EXPECT_TRUE(mentions(refused_source(llama(variant)), "rope_freqs.weight F32 [9]"));
    variant.rope_factors = llama3_factors(factor);
    variant.scaling = "linear";
    EXPECT_TRUE(mentions(refused_source(llama(variant)), "beside linear"));
  }
  Variant variant;
  variant.rope_factors.assign(8, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(mentions(refused_source(llama(variant)), "rope_freqs.weight"));
}

TEST_F(Gguf, NamesWhatIsNotLlama) {
  Variant variant;
  variant.architecture = "gemma";
  EXPECT_TRUE(mentions(refused_source(llama(variant)), "general.architecture gemma"));
  variant = {};
  variant.scaling = "longrope";
  EXPECT_TRUE(mentions(refused_source(llama(variant)), "llama.rope.scaling.type longrope"));
  variant = {};
  variant.key_rows = 64;
  EXPECT_TRUE(mentions(refused_source(llama(variant)), "blk.0.attn_k.weight of shape [64, 64]"));
  const auto with = [&](auto&& change) {
    GgufBuilder builder = llama();
    change(builder);
    return refused_source(builder);
  };
  using B = GgufBuilder;
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("llama.expert_count", 8); }), "expert_count"));
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("split.count", 2); }), "split.count"));
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("llama.attention.key_length", 32); }),
                       "llama.rope.dimension_count = 16"));
  EXPECT_TRUE(mentions(with([](B& b) { b.u32("tokenizer.ggml.padding_token_id", 7); }),
                       "padding_token_id = 7 is not one of 7 tokens"));
  const std::string floats(256, '\0');
  for (const char* name :
       {"blk.0.attn_q.bias", "blk.1.attn_norm.weight", "blk.00.attn_norm.weight",
        "blk.-1.attn_norm.weight", "blk.attn_norm.weight", "blk.0", "v.weight"}) {
    EXPECT_TRUE(mentions(with([&](B& b) { b.tensor(name, kF32, {64}, floats); }),
                         fmt::format("tensor {} is not supported", name)));
  }
}

TEST_F(Gguf, SourceUsesTheNamesOfHuggingFace) {
  Variant variant;
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
  const GgufSource odd(good(variant));
  const std::string text = model_error([&] { odd.find("model.layers.0.self_attn.q_proj.weight"); });
  EXPECT_TRUE(mentions(text, "tensor blk.0.attn_q.weight of type Q8_K"));
  EXPECT_TRUE(mentions(text, "supported: F32, F16, Q4_0"));
}

TEST_F(Gguf, ReadsOtherArchitectures) {
  Variant variant;
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
  GgufBuilder builder = llama();
  builder.u32("llama.attention.sliding_window", 24);
  const ModelConfig mistral = gguf_config(GgufFile(put("mistral.gguf", builder.build())));
  EXPECT_STREQ(mistral.architecture->name, "MistralForCausalLM");
  EXPECT_EQ(mistral.sliding_window, 24);
}

// llama.cpp's converter stores logical row (head, half, i) at (head, i, half).
TEST_F(Gguf, InterleavedRowsFollowTheConverter) {
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

TEST_F(Gguf, ExtractsTheTokenizer) {
  const GgufTokenizerMetadata tokenizer = gguf_tokenizer(GgufFile(good()));
  EXPECT_EQ(tokenizer.model, "gpt2");
  EXPECT_EQ(tokenizer.pre, "llama-bpe");
  ASSERT_EQ(tokenizer.tokens.size(), 7u);
  EXPECT_EQ(tokenizer.tokens[2], "ab");
  EXPECT_EQ(tokenizer.token_types, (std::vector<int64_t>{1, 1, 1, 1, 3, 3, 3}));
  EXPECT_EQ(tokenizer.scores[2], -0.1);
  EXPECT_EQ(tokenizer.merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(tokenizer.bos_id, 4);
  EXPECT_EQ(tokenizer.eos_id, 5);
  EXPECT_EQ(tokenizer.eot_id, 6);
  EXPECT_EQ(tokenizer.unk_id, -1);
  EXPECT_EQ(tokenizer.add_bos, true);
  EXPECT_EQ(tokenizer.add_eos, std::nullopt);
  EXPECT_EQ(tokenizer.chat_template, "{{ x }}");
  GgufBuilder builder;
  builder.texts("tokenizer.ggml.tokens", {"a", "b"});
  builder.array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1});
  const GgufFile file(put("bad.gguf", builder.build()));
  EXPECT_TRUE(mentions(model_error([&] { gguf_tokenizer(file); }), "2 tokens but 1 token types"));
}

}  // namespace
}  // namespace jackscrew
