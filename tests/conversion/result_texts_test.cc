// What stands beside weights that are written.
#include "conversion/result_texts.h"

#include "formats/safetensors.h"
#include "tests/conversion/conversion.h"
#include "tests/support/errors.h"
#include "text/tokenizer/tokenizer_json.h"

namespace jackscrew {
namespace {

TEST(ResultTexts, NoMatrixOfABlockIsRoundedByTheDeclaredType) {
  const auto declared = [](std::set<std::string_view> matrices, std::set<std::string_view> others) {
    return std::string(torch_dtype({std::move(matrices), std::move(others)}));
  };
  EXPECT_EQ(declared({"F32"}, {"BF16"}), "float32");
  EXPECT_EQ(declared({"BF16", "F32"}, {"F32"}), "float32");
  EXPECT_EQ(declared({"BF16"}, {"F32"}), "bfloat16");
  EXPECT_EQ(declared({"F16"}, {"F32", "BF16"}), "float16");
  // All matrices are quantised.
  EXPECT_EQ(declared({}, {"F32", "BF16"}), "bfloat16");
  EXPECT_EQ(declared({}, {"F32", "F16"}), "float16");
  EXPECT_EQ(declared({}, {"F32"}), "float32");
}

// What else was in a directory that was moved meanwhile would be missing.
TEST(ResultTexts, ADirectoryThatIsLostIsNotMadeAgain) {
  const TemporaryDirectory directory("jackscrew_lost_texts");
  for (const char* name : {"config.json", "additional_chat_templates/tool_use.jinja"}) {
    const fs::path lost = directory.path() / "lost";
    expect_message(ErrorKind::generic, "cannot create", [&] { write_texts({{name, "{}"}}, lost); });
    EXPECT_FALSE(fs::exists(lost));
    write_texts({{name, "{}"}}, directory.path());
    EXPECT_EQ(read_text(directory.path() / name), "{}");
  }
}

// As where a disk is full: the file in it would only miss its directory.
TEST(ResultTexts, ADirectoryThatCannotBeMadeIsTheError) {
  const TemporaryDirectory directory("jackscrew_no_directory");
  directory.file("additional_chat_templates", "a file");
  const fs::path refused = directory.path() / "additional_chat_templates";
  const Texts texts = {{"additional_chat_templates/tool_use.jinja", "{}"}};
  expect_message(ErrorKind::generic, "cannot create " + refused.string() + ": ",
                 [&] { write_texts(texts, directory.path()); });
}

constexpr const char* kShape = R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 258,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128})";

// The files may be others, or none, when a run ends.
TEST(ResultTexts, AreThoseThatWereRead) {
  const TemporaryDirectory directory("jackscrew_read_texts");
  const std::string config = directory.file("config.json", kShape);
  const std::string bytes = to_tokenizer_json(byte_tokenizer());
  directory.file("tokenizer.json", bytes);
  directory.file("special_tokens_map.json", "{ }");
  const ModelFiles files = open_model(config);
  const Tokenizer tokenizer = make_tokenizer("auto", files);
  directory.file("tokenizer.json", "");
  fs::remove(directory.path() / "special_tokens_map.json");
  fs::create_symlink("special_tokens_map.json", directory.path() / "special_tokens_map.json");
  const Texts expected = {{"tokenizer.json", bytes}, {"special_tokens_map.json", "{ }"}};
  EXPECT_EQ(tokenizer_texts(files, tokenizer, {}), expected);
  EXPECT_EQ(tokenizer_texts(files), expected);
}

// One that is there is not left out.
TEST(ResultTexts, OfATokenizerThatCannotBeReadAreRefused) {
  const TemporaryDirectory directory("jackscrew_unread_texts");
  const std::string config = directory.file("config.json", kShape);
  fs::create_directory(directory.path() / "tokenizer.json");
  const ModelFiles files = open_model(config);
  expect_message(ErrorKind::model, "tokenizer.json", [&] { tokenizer_texts(files); });
}

TEST_F(SlowConversion, BlocksInF32BesideAnEmbeddingInBf16AreDeclaredAsF32) {
  fs::copy(path("base"), path("mixed"), fs::copy_options::recursive);
  const SafetensorsFile file(path("base") + "/model.safetensors");
  const auto in_bf16 = [](const SafetensorsEntry& entry) {
    return entry.name == "model.embed_tokens.weight";
  };
  std::vector<SafetensorsSpec> specs;
  for (const SafetensorsEntry& entry : file.entries()) {
    specs.push_back({entry.name, in_bf16(entry) ? "BF16" : entry.dtype, entry.shape});
  }
  SafetensorsWriter writer(path("mixed") + "/model.safetensors", specs);
  for (const SafetensorsEntry& entry : file.entries()) {
    if (in_bf16(entry)) {
      writer.write(entry.name, std::vector<uint8_t>(entry.bytes.size() / 2));
    } else {
      writer.write(entry.name, entry.bytes);
    }
  }
  writer.close();
  answer(fmt::format("export model={} output_dir={}", path("mixed"), path("written")));
  const auto config = nlohmann::json::parse(read_text(path("written") + "/config.json"));
  EXPECT_EQ(config["torch_dtype"], "float32");
}

TEST_F(SlowConversion, SaysThatLimitsOfYarnAreIgnored) {
  auto config = nlohmann::json::parse(tiny_.text("base/config.json"));
  const auto notes = [&](double fast) {
    config["rope_scaling"] = {{"rope_type", "yarn"},
                              {"factor", 2.0},
                              {"original_max_position_embeddings", 64},
                              {"beta_fast", fast}};
    tiny_.file("base/config.json", config.dump());
    return answer(fmt::format("export model={} output={} overwrite=true", path("base"),
                              path("m.gguf")))["notes"]
        .dump();
  };
  EXPECT_NE(notes(16.0).find("llama.cpp ignores YaRN's beta_fast 16"), std::string::npos);
  EXPECT_EQ(notes(32.0), "[]");
}

}  // namespace
}  // namespace jackscrew
