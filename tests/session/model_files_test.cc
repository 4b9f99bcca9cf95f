// What a model's files are taken for when they are opened.
#include "session/model_files.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "formats/hf_config.h"
#include "formats/peft.h"
#include "formats/safetensors.h"
#include "tests/cli/run_program.h"
#include "tests/formats/gguf_builder.h"
#include "tests/support/errors.h"
#include "text/tokenizer/tokenizer_files.h"
#include "text/tokenizer/tokenizer_json.h"

namespace jackscrew {
namespace {

// A file of seven tokens and two unused ones, one of which pads the vocabulary.
std::string padded_gguf() {
  GgufBuilder out = gguf_llama_shape(32, 64, 2);
  out.text("tokenizer.ggml.model", "gpt2");
  out.text("tokenizer.ggml.pre", "gpt-2");
  out.texts("tokenizer.ggml.tokens",
            {"a", "b", "ab", "[PAD3]", "<s>", "</s>", "<eot>", "c", "[PAD8]"});
  out.array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, 1, 1, 5, 3, 3, 3, 1, 5});
  out.texts("tokenizer.ggml.merges", {"a b"});
  out.u32("tokenizer.ggml.eos_token_id", 5);
  out.u32("tokenizer.ggml.eot_token_id", 6);
  out.tensor("token_embd.weight", 0, {32, 9}, std::string(32 * 9 * 4, '\1'));
  return out.build();
}

// tokenizer.json, as a run writes it beside its adapter, has no unused tokens.
TEST(OpenModel, TakesTheTokenizerBesideAnAdapterForTheModelsOwn) {
  const TemporaryDirectory directory("jackscrew_model_files");
  const std::string model = directory.file("m.gguf", padded_gguf());
  TokenizerData data = *open_model(model).tokenizer;
  const std::string adapter = directory.path().string();
  const auto owner = [&] {
    directory.file("tokenizer.json", to_tokenizer_json(data));
    return open_model(model, adapter).tokenizer_owner;
  };
  EXPECT_EQ(owner(), TokenizerOwner::model);
  EXPECT_TRUE(open_model(model, adapter).has_tokens_of(Tokenizer(data)));
  TokenizerData good = data;
  data.tokens[7] = "d";
  EXPECT_EQ(owner(), TokenizerOwner::adapter);
  data = good;
  data.kinds[8] = TokenKind::added;
  EXPECT_EQ(owner(), TokenizerOwner::adapter);
  data = good;
  data.kinds[7] = TokenKind::unused;
  EXPECT_EQ(owner(), TokenizerOwner::adapter);
}

// Its chat template may count, and another one would go unnoticed.
TEST(OpenModel, RefusesAnAdaptersTokenizerOverOneThatCannotBeRead) {
  const TemporaryDirectory directory("jackscrew_model_files");
  const std::string config = directory.file("config.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128})");
  const fs::path adapter = directory.path() / "adapter";
  fs::create_directory(adapter);
  const std::string good = to_tokenizer_json(byte_tokenizer());
  directory.file("adapter/tokenizer.json", good);
  // One that is read, but of a kind that is not supported.
  directory.file("tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_TRUE(open_model(config).tokenizer_error.has_value());
  EXPECT_EQ(open_model(config, adapter.string()).tokenizer_owner, TokenizerOwner::adapter);

  directory.file("tokenizer.json", good);
  fs::create_directory(directory.path() / "chat_template.jinja");
  const std::string error =
      error_of(ErrorKind::model, [&] { open_model(config, adapter.string()); });
  EXPECT_EQ(error, (directory.path() / "chat_template.jinja").string() +
                       " is a directory, not a file | make it readable, or take the adapter's "
                       "tokenizer alone: tokenizer=" +
                       adapter.string());
  EXPECT_EQ(open_model(config, adapter.string(), adapter.string()).tokenizer_owner,
            TokenizerOwner::recipe);
}

// As the file has it, not a Hugging Face directory.
TEST(OpenModel, NamesWhatIsWrongWithAGgufFile) {
  const TemporaryDirectory directory("jackscrew_model_files");
  const ModelFiles files = open_model(directory.file("m.gguf", padded_gguf()));
  const auto refusal = [&](const WeightSpec& weight) {
    return error_of(ErrorKind::model, [&] { checked_tensor(files, *files.source, weight); });
  };
  const std::string path = (directory.path() / "m.gguf").string();
  EXPECT_EQ(refusal({.name = "model.layers.0.mlp.up_proj.weight", .layer = 0}),
            path +
                ": tensor blk.0.ffn_up.weight is missing | the file is incomplete, or its metadata "
                "belong to another model");
  EXPECT_EQ(refusal({.name = "model.embed_tokens.weight",
                     .rows = 9,
                     .cols = 64,
                     .kind = WeightKind::embedding}),
            path +
                ": tensor token_embd.weight has shape [9, 32], the configuration asks for "
                "[9, 64] | the file is damaged, or its metadata belong to another model");
  // A large vocabulary is held once.
  EXPECT_EQ(&make_tokenizer("auto", files).data(), files.tokenizer.get());
  // What is wrong with a tokenizer may be found only where it is made.
  ModelFiles twice = files;
  TokenizerData repeated = *files.tokenizer;
  repeated.tokens[7] = "b";
  twice.tokenizer = std::make_shared<const TokenizerData>(repeated);
  EXPECT_EQ(error_of(ErrorKind::model, [&] { make_tokenizer("auto", twice); }),
            path +
                ": the tokenizer's tokens 1 and 7 are both \"b\" | give its own tokenizer: "
                "tokenizer=DIR");
}

// A golden layer as the head of a model.
void write_head(const fs::path& to, const std::string& layout) {
  const SafetensorsFile file(fs::path(kTestData) / "golden/quantised" / layout /
                             "model.safetensors");
  std::vector<SafetensorsSpec> specs;
  const auto name = [](const SafetensorsEntry& entry) { return "lm_head" + entry.name.substr(1); };
  for (const SafetensorsEntry& entry : file.entries()) {
    specs.push_back({name(entry), entry.dtype, entry.shape});
  }
  SafetensorsWriter writer(to, specs);
  for (const SafetensorsEntry& entry : file.entries()) writer.write(name(entry), entry.bytes);
  writer.close();
}

// ExLlama's programs leave tie_word_embeddings true, and round the head apart from the embedding.
TEST(OpenModel, AHeadOfExllamaIsNotTheEmbedding) {
  const TemporaryDirectory directory("jackscrew_model_files");
  directory.file("config.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128, "tie_word_embeddings": true})");
  const auto is_tied = [&](const char* layout) {
    write_head(directory.path() / "model.safetensors", layout);
    return open_model(directory.path().string()).config.tie_word_embeddings;
  };
  EXPECT_FALSE(is_tied("exl2"));
  EXPECT_FALSE(is_tied("exl3_4_mcg"));
  EXPECT_TRUE(is_tied("int"));
}

// A tied golden model whose tensors have other names.
class RenamedModel {
 public:
  template <class Rename>
  explicit RenamedModel(const Rename& rename) {
    fs::copy(golden_ / "config.json", directory_.path());
    const SafetensorsFile file(golden_ / "model.safetensors");
    std::vector<SafetensorsSpec> specs;
    for (const SafetensorsEntry& entry : file.entries()) {
      specs.push_back({rename(entry.name), entry.dtype, entry.shape});
    }
    SafetensorsWriter writer(directory_.path() / "model.safetensors", specs);
    for (const SafetensorsEntry& entry : file.entries()) {
      writer.write(rename(entry.name), entry.bytes);
    }
    writer.close();
  }
  std::string path() const { return directory_.path().string(); }
  const fs::path& golden() const { return golden_; }

 private:
  const TemporaryDirectory directory_{"jackscrew_renamed_model"};
  const fs::path golden_ = fs::path(kTestData) / "golden/gqa_tied";
};

// Either name is that of both, as in transformers.
TEST(OpenModel, TakesTheHeadOfATiedModelAsItsEmbedding) {
  const std::string embedding = "model.embed_tokens.weight";
  const RenamedModel model([&](const std::string& name) {
    return name == embedding ? std::string("lm_head.weight") : name;
  });
  const ModelFiles files = open_model(model.path());
  const ModelFiles golden = open_model(model.golden().string());
  const StoredTensor* taken = files.source->find(embedding);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->name, embedding);
  EXPECT_TRUE(std::ranges::equal(taken->bytes, golden.source->find(embedding)->bytes));
  EXPECT_EQ(files.source->find("lm_head.weight"), nullptr);
  EXPECT_NO_THROW(files.source->release(*taken));
  // Of an untied model the embedding is lost.
  const fs::path config = fs::path(model.path()) / "config.json";
  write_text_atomic(config, set_untied(read_text(config)));
  EXPECT_EQ(open_model(model.path()).source->find(embedding), nullptr);
}

TEST(OpenModel, NamesWhatLeavesModelOutOfNames) {
  const RenamedModel model([](const std::string& name) { return name.substr(6); });
  const ModelFiles files = open_model(model.path());
  const WeightSpec weight{.name = "model.norm.weight"};
  EXPECT_EQ(
      hint_of(error_of(ErrorKind::model, [&] { checked_tensor(files, *files.source, weight); })),
      "AutoModel's save_pretrained() leaves `model.` out of all names, and the head: save "
      "the model by AutoModelForCausalLM");
}

// Trainers write the model's configuration beside an adapter, too.
TEST(OpenModel, AnAdapterWithAConfigurationIsNoModel) {
  const TemporaryDirectory directory("jackscrew_model_files");
  const fs::path golden = fs::path(kTestData) / "golden", adapter = directory.path() / "adapter";
  fs::create_directory(adapter);
  for (const char* name : {kAdapterConfig, kPeftWeightsFile}) {
    fs::copy(golden / "lora" / name, adapter);
  }
  fs::copy(golden / "gqa_tied/config.json", adapter);
  expect_message(ErrorKind::model, "is an adapter, not a model",
                 [&] { open_model(adapter.string()); });
  fs::copy(golden / "gqa_tied/model.safetensors", adapter);
  EXPECT_NE(open_model(adapter.string()).source, nullptr);
}

TEST(OpenModel, SaysWhereATokenizerWithoutAModelIsGiven) {
  const TemporaryDirectory directory("jackscrew_model_files");
  const std::string path = directory.path().string();
  const auto hint = [&] { return hint_of(error_of(ErrorKind::model, [&] { open_model(path); })); };
  EXPECT_EQ(hint().find("tokenizer"), std::string::npos) << hint();
  directory.file("tokenizer.json", "{}");
  EXPECT_NE(hint().find("; its tokenizer alone is read by tokenizer=" + path), std::string::npos)
      << hint();
}

TEST(OpenModel, SaysThatARunHasNotEnded) {
  const TemporaryDirectory directory("jackscrew_model_files");
  directory.file("train_log.jsonl", "");
  directory.file("tokenizer.json", "{}");
  EXPECT_EQ(hint_of(error_of(ErrorKind::model, [&] { open_model(directory.path().string()); })),
            "it has the log of a run, which writes its result when it ends");
}

// As on a disk that fails: whether they are there is not known.
TEST(OpenModel, NamesWhatCannotBeLookedAt) {
  const TemporaryDirectory directory("jackscrew_model_not_looked_at");
  const auto refused = [&](const char* name, const auto& open, ErrorKind kind = ErrorKind::model) {
    SCOPED_TRACE(name);
    const fs::path file = directory.path() / name;
    fs::create_symlink(file, file);
    const std::string error = error_of(kind, open);
    EXPECT_TRUE(error.starts_with("cannot look at " + file.string() + ": ")) << error;
    EXPECT_EQ(hint_of(error), kSeeThatItCanBeRead);
    fs::remove(file);
  };
  const auto open = [&] { open_model(directory.path().string()); };
  // Of the other kind is what is wrong with a tokenizer, which is told where text is read.
  refused("tokenizer.model", open, ErrorKind::generic);
  refused("config.json", open);
  refused("model", [&] { open_model((directory.path() / "model").string()); });
  refused("adapter", [&] { read_peft_adapter(directory.path() / "adapter"); });
  refused("adapter_model.safetensors", [&] {
    directory.file("adapter_config.json", "{}");
    read_peft_adapter(directory.path());
  });
  refused("tokenizer.json", [&] { read_tokenizer(directory.path() / "tokenizer.json"); });
}

// Of a type that is not read, or of a name like a scale's: nobody needs them, and both are told.
TEST(OpenModel, WarnsOfWhatIsNotUsed) {
  const TemporaryDirectory directory("jackscrew_model_files");
  directory.file("config.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128})");
  SafetensorsWriter writer(directory.path() / "model.safetensors",
                           {{"model.layers.0.mlp.up_proj.bias", "F64", {1}},
                            {"model.layers.0.mlp.up_proj.input_scale", "F32", {1}},
                            {"model.layers.0.self_attn.k_scale", "F32", {1}},
                            {"model.odd_scale", "F32", {1}},
                            {"model.zero.bias", "F32", {1}}});
  writer.write("model.layers.0.mlp.up_proj.bias", std::vector<uint8_t>(8));
  for (const char* name :
       {"model.layers.0.mlp.up_proj.input_scale", "model.layers.0.self_attn.k_scale",
        "model.odd_scale", "model.zero.bias"}) {
    writer.write(name, std::vector<uint8_t>(4));
  }
  writer.close();
  const ModelFiles files = open_model(directory.path().string());
  ::testing::internal::CaptureStderr();
  warn_of_unused_tensors(files);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("2 tensors are not used"), std::string::npos) << said;
  EXPECT_NE(said.find("mlp.up_proj.bias ..."), std::string::npos) << said;
}

}  // namespace
}  // namespace jackscrew
