// GGUF files as they are written, through the reader.
#include "formats/gguf_model_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "model/rope.h"
#include "model/weights.h"
#include "quant/gguf_formats.h"
#include "quant/plain.h"
#include "tests/formats/gguf_builder.h"
#include "tests/formats/support.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

class GgufModelWriterTest : public ::testing::Test {
 protected:
  GgufModelWriterTest()
      : path_(fs::temp_directory_path() /
              fmt::format("jackscrew_gguf_model_writer_{}.gguf", ::getpid())) {
    model_.config.vocab_size = 9;
    model_.config.hidden_size = 16;
    model_.config.intermediate_size = 24;
    model_.config.num_hidden_layers = 2;
    model_.config.num_attention_heads = 4;
    model_.config.num_key_value_heads = 2;
    model_.config.head_dim = 6;
    model_.config.rms_norm_eps = 1e-5;
    model_.config.rope_theta = 30000.0;
    model_.config.bos_token_id = 1;
    model_.config.eos_token_ids = {2};
    model_.name = "small";
    model_.tokenizer.model = "gpt2";
    model_.tokenizer.pre = "smollm";
    model_.tokenizer.tokens = {"a", "<s>", "</s>", "b", "ab"};
    model_.tokenizer.token_types = {1, 3, 3, 1, 1};
    model_.tokenizer.merges = {"a b"};
    model_.tokenizer.bos_id = 1;
    model_.tokenizer.eos_id = 2;
    model_.tokenizer.eom_id = 3;
    model_.tokenizer.add_bos = true;
    model_.tokenizer.chat_template = "{{ messages }}";
  }
  ~GgufModelWriterTest() override { fs::remove(path_); }

  std::vector<ModelTensor> tensors() const {
    std::vector<ModelTensor> out;
    for (const WeightSpec& weight : weights_of(model_.config, StageSpec::whole(model_.config))) {
      out.push_back({weight, weight.is_vector() ? &f32_format() : matrices_});
    }
    return out;
  }
  // Every tensor of bytes that tell which one it is.
  void write() const {
    const auto writer = make_gguf_model_writer(path_, model_, tensors());
    uint8_t mark = 1;
    for (const ModelTensor& tensor : tensors()) {
      const std::vector<uint8_t> bytes(static_cast<size_t>(tensor.bytes()), mark++);
      writer->write(tensor.spec, bytes);
    }
    writer->close();
    EXPECT_EQ(gguf_model_bytes(model_, tensors()), static_cast<int64_t>(fs::file_size(path_)));
  }
  std::string refusal() const {
    return error_of(ErrorKind::model, [&] { make_gguf_model_writer(path_, model_, tensors()); });
  }

  fs::path path_;
  GgufModel model_;
  const Format* matrices_ = &f16_format();
};

TEST_F(GgufModelWriterTest, ComesBackAsItWas) {
  write();
  const GgufSource source(path_);
  const ModelConfig& config = source.config();
  EXPECT_EQ(config.architecture->name, std::string("LlamaForCausalLM"));
  EXPECT_EQ(config.vocab_size, 9);
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.intermediate_size, 24);
  EXPECT_EQ(config.num_hidden_layers, 2);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 6);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 30000.0);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  uint8_t mark = 1;
  for (const ModelTensor& tensor : tensors()) {
    const StoredTensor* stored = source.find(tensor.spec.name);
    ASSERT_NE(stored, nullptr) << tensor.spec.name;
    EXPECT_EQ(stored->format.get(), tensor.format) << tensor.spec.name;
    EXPECT_EQ(std::ssize(stored->bytes), tensor.bytes()) << tensor.spec.name;
    EXPECT_TRUE(std::ranges::all_of(stored->bytes, [&](uint8_t byte) { return byte == mark; }))
        << tensor.spec.name;
    ++mark;
  }
  EXPECT_EQ(source.names().size(), tensors().size());
  EXPECT_EQ(source.file_type(), "f16");
  EXPECT_EQ(source.find("model.layers.1.self_attn.k_proj.weight")->interleaved_heads, 2);
  const GgufTokenizerMetadata tokenizer = gguf_tokenizer(source.file());
  EXPECT_EQ(tokenizer.pre, "smollm");
  EXPECT_EQ(tokenizer.merges, model_.tokenizer.merges);
  EXPECT_EQ(tokenizer.chat_template, "{{ messages }}");
  EXPECT_EQ(tokenizer.add_bos, true);
  EXPECT_EQ(tokenizer.eom_id, 3);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{2, 3}));
  // llama.cpp wants a token for every row of the embedding.
  ASSERT_EQ(tokenizer.tokens.size(), 9u);
  EXPECT_EQ(tokenizer.tokens[8], "[PAD8]");
  EXPECT_EQ(tokenizer.token_types[8], 5);
}

// What would be false of other weights is not passed on.
TEST_F(GgufModelWriterTest, WhatAFileSaysOfItsModelStays) {
  const fs::path original = path_.string() + ".original";
  GgufBuilder builder;
  builder.text("general.name", "Original");
  builder.text("general.license", "apache-2.0");
  builder.text("general.base_model.0.name", "Base");
  builder.texts("general.tags", {"chat", "en"});
  builder.f32("general.sampling.temp", 0.6f);
  builder.text("general.quantized_by", "somebody");
  builder.text("general.uuid", "1");
  builder.u32("general.file_type", 2);
  builder.u32("general.alignment", 64);
  write_text_atomic(original, builder.build());
  const GgufFile from(original);
  model_.from = &from;
  write();
  const GgufFile file(path_);
  EXPECT_EQ(file.text("general.name"), "Original");
  EXPECT_EQ(file.text("general.license"), "apache-2.0");
  EXPECT_EQ(file.text("general.base_model.0.name"), "Base");
  EXPECT_EQ(file.texts("general.tags"), (std::vector<std::string>{"chat", "en"}));
  EXPECT_EQ(file.number("general.sampling.temp"), 0.6);
  EXPECT_EQ(file.integer("general.file_type"), 1);
  for (const char* key : {"general.quantized_by", "general.uuid", "general.alignment"}) {
    EXPECT_FALSE(file.has(key)) << key;
  }
  fs::remove(original);
}

// llama.cpp refuses byte-level BPE without the key.
TEST_F(GgufModelWriterTest, MergesAreNamedWhereThereAreNone) {
  model_.tokenizer.merges.clear();
  write();
  const GgufFile file(path_);
  EXPECT_TRUE(file.has("tokenizer.ggml.merges"));
  EXPECT_TRUE(gguf_tokenizer(file).merges.empty());
}

TEST_F(GgufModelWriterTest, RopeScalingComesBack) {
  RopeScaling& scaling = model_.config.rope_scaling;
  scaling.kind = RopeScaling::Kind::linear;
  scaling.factor = 2.5;
  write();
  EXPECT_EQ(GgufSource(path_).config().rope_scaling.factor, 2.5);
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.factor = 8.0;
  model_.config.head_dim = 16;  // the reader wants a pair that all of the factor divides
  model_.config.rope_theta = 500000.0;
  write();
  EXPECT_EQ(GgufSource(path_).config().rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(GgufSource(path_).config().rope_scaling.factor, 8.0);
  model_.config.head_dim = 64;
  scaling.high_freq_factor = 1.5;  // hardly a pair between the limits
  write();
  EXPECT_EQ(GgufSource(path_).config().rope_scaling.kind, RopeScaling::Kind::llama3);
  scaling.kind = RopeScaling::Kind::yarn;
  scaling.original_max_position_embeddings = 512;
  scaling.attention_factor = 1.5;
  scaling.beta_fast = 24.0;
  scaling.beta_slow = 0.5;
  write();
  const RopeScaling back = GgufSource(path_).config().rope_scaling;
  EXPECT_EQ(back.original_max_position_embeddings, 512);
  EXPECT_NEAR(back.attention_factor, 1.5, 1e-6);
  EXPECT_EQ(back.beta_fast, 24.0);
  EXPECT_EQ(back.beta_slow, 0.5);
}

// Nearly those of Llama 3.1, for which they are not taken.
TEST_F(GgufModelWriterTest, RopeFrequenciesComeBackAsTheyWere) {
  model_.config.head_dim = 64;
  model_.config.rope_theta = 500000.0;
  RopeScaling& scaling = model_.config.rope_scaling;
  for (const double factor : {8.0, 32.0}) {
    for (const auto& [high, context] :
         {std::pair(4.0, 8192), std::pair(4.003, 8192), std::pair(4.0, 8190)}) {
      scaling = {RopeScaling::Kind::llama3, factor, 1.0, high, context};
      write();
      const ModelConfig back = GgufSource(path_).config();
      const std::vector<float> wanted = rope_frequencies(model_.config, 1);
      const std::vector<float> found = rope_frequencies(back, 1);
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(found[i], wanted[i], 2e-6f * wanted[i])
            << factor << " " << high << " " << context << ": " << i;
      }
    }
  }
}

// llama.cpp guesses then; 0 would say that it is f32.
TEST_F(GgufModelWriterTest, ATypeWithoutANumberIsNotNamed) {
  model_.config.hidden_size = model_.config.intermediate_size = 64;
  model_.config.head_dim = 16;
  for (const Format* format : {&mxfp4_format(), &nvfp4_format()}) {
    matrices_ = format;
    write();
    EXPECT_FALSE(GgufFile(path_).has("general.file_type"));
    EXPECT_EQ(GgufSource(path_).file_type(), "");
  }
  matrices_ = &f32_format();
  write();
  EXPECT_EQ(GgufFile(path_).integer("general.file_type"), 0);
  EXPECT_EQ(GgufSource(path_).file_type(), "f32");
}

TEST_F(GgufModelWriterTest, MistralKeepsItsWindow) {
  model_.config.architecture = find_architecture("MistralForCausalLM");
  model_.config.sliding_window = 7;
  write();
  EXPECT_EQ(GgufSource(path_).config().sliding_window, 7);
  EXPECT_EQ(GgufSource(path_).config().architecture, model_.config.architecture);
}

// The same computation as a Llama's, of which transformers wants heads that divide the hidden size.
TEST_F(GgufModelWriterTest, AMistralOfOtherHeadsComesBackAsOne) {
  model_.config.architecture = find_architecture("MistralForCausalLM");
  model_.config.num_attention_heads = 6;
  write();
  EXPECT_STREQ(GgufSource(path_).config().architecture->name, "MistralForCausalLM");
  EXPECT_EQ(GgufSource(path_).config().sliding_window, 0);
}

TEST_F(GgufModelWriterTest, RefusesWhatHasNoPlace) {
  model_.config.rope_scaling.kind = RopeScaling::Kind::dynamic;
  EXPECT_NE(refusal().find("rope scaling \"dynamic\""), std::string::npos);
  model_.config.rope_scaling.kind = RopeScaling::Kind::yarn;
  model_.config.rope_scaling.truncate = false;
  EXPECT_NE(refusal().find("YaRN with limits that are not rounded"), std::string::npos);
  // llama.cpp does not open these architectures with rope_freqs.weight.
  model_.config.rope_scaling.kind = RopeScaling::Kind::llama3;
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "SmolLM3ForCausalLM"}) {
    model_.config.architecture = find_architecture(architecture);
    EXPECT_NE(refusal().find("rope scaling \"llama3\" in a model of "), std::string::npos)
        << architecture;
  }
  model_.config.rope_scaling.kind = RopeScaling::Kind::none;
  model_.config.architecture = find_architecture("Qwen2ForCausalLM");
  model_.config.sliding_window = 7;
  EXPECT_NE(refusal().find("sliding window"), std::string::npos);
  model_.config.sliding_window = 0;
  model_.config.architecture = find_architecture("SmolLM3ForCausalLM");
  model_.config.unrotated = {true, false};
  // As a run may be told, which has no option output_dir to give instead.
  EXPECT_NE(refusal().find("other than every 4th | a Hugging Face directory has: output_dir=DIR "
                           "storage=bf16 writes one, and in a run export=hf"),
            std::string::npos);
}

TEST_F(GgufModelWriterTest, RefusesNumbersBeyond32Bits) {
  model_.config.architecture = find_architecture("MistralForCausalLM");
  RopeScaling& scaling = model_.config.rope_scaling;
  scaling.kind = RopeScaling::Kind::yarn;
  constexpr int64_t kLarge = int64_t{1} << 33;
  const auto refused = [&](int64_t& number, const std::string& key) {
    const int64_t before = std::exchange(number, kLarge);
    expect_error(ErrorKind::model,
                 "GGUF has no place for llama." + key + " = 8589934592 | a Hugging Face directory",
                 [&] { check_gguf_config(model_.config); });
    number = before;
  };
  refused(model_.config.max_position_embeddings, "context_length");
  refused(model_.config.sliding_window, "attention.sliding_window");
  refused(scaling.original_max_position_embeddings, "rope.scaling.original_context_length");
  check_gguf_config(model_.config);
}

TEST_F(GgufModelWriterTest, BytesOutOfOrderAreAnError) {
  const auto all = tensors();
  const auto writer = make_gguf_model_writer(path_, model_, all);
  const std::vector<uint8_t> bytes(static_cast<size_t>(all[0].bytes()));
  expect_error(ErrorKind::generic, "is due", [&] { writer->write(all[1].spec, bytes); });
  writer->write(all[0].spec, bytes);
  expect_error(ErrorKind::generic, "lacks", [&] { writer->close(); });
  const std::vector<uint8_t> many(static_cast<size_t>(all[1].bytes()) + 1);
  expect_error(ErrorKind::generic, "which lacks", [&] { writer->write(all[1].spec, many); });
}

}  // namespace
}  // namespace jackscrew
