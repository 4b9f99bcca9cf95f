// Models with other tokenizers than those of the tests around, through the program. Where one
// cannot be used, all that needs none works.
#include <cmath>

#include "tests/formats/gguf_builder.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

using nlohmann::json;

// A Llama of one layer with a vocabulary of 260 in a tokenizer of that kind: "llama" is
// SentencePiece's.
std::string gguf_with_tokenizer(const std::string& kind) {
  GgufBuilder out = gguf_llama_shape(32, 48, 2);
  out.text("tokenizer.ggml.model", kind);
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "\u2581a", "\u2581", "a", "b"};
  std::vector<int32_t> types = {2, 3, 3, 1, 1, 1, 1};
  for (int i = 7; i < 260; ++i) tokens.push_back("\u2581" + std::to_string(i));
  types.resize(260, 1);
  out.texts("tokenizer.ggml.tokens", tokens);
  out.array<float>("tokenizer.ggml.scores", GgufType::f32, std::vector<float>(260, -1.0f));
  out.array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, types);
  out.u32("tokenizer.ggml.bos_token_id", 1);
  out.u32("tokenizer.ggml.eos_token_id", 2);
  const auto weight = [&](const std::string& name, std::vector<uint64_t> extents) {
    uint64_t count = 1;
    for (const uint64_t extent : extents) count *= extent;
    std::string bytes;
    for (uint64_t i = 0; i < count; ++i) {
      const auto angle = static_cast<float>(i * 37 % 1009);
      bytes += GgufBuilder::raw(extents.size() == 1 ? 1.0f : 0.1f * std::sin(angle));
    }
    out.tensor(name, 0, extents, bytes);
  };
  weight("token_embd.weight", {32, 260});
  weight("blk.0.attn_norm.weight", {32});
  weight("blk.0.ffn_norm.weight", {32});
  for (const char* name : {"q", "k", "v", "output"}) {
    weight("blk.0.attn_" + std::string(name) + ".weight", {32, 32});
  }
  weight("blk.0.ffn_gate.weight", {32, 48});
  weight("blk.0.ffn_up.weight", {32, 48});
  weight("blk.0.ffn_down.weight", {48, 32});
  weight("output_norm.weight", {32});
  return out.build();
}

json inspected(const std::string& path) {
  const Outcome outcome = run("inspect --json " + path);
  EXPECT_EQ(outcome.exit_code, 0);
  return json::parse(outcome.out, nullptr, false);
}

class SlowForeignTokenizer : public ::testing::Test {
 protected:
  SlowForeignTokenizer() : tiny_("foreign_tokenizer") {}

  // `path` can be looked at, says `reason` where its tokenizer is wanted, and trains by bytes; the
  // result then has the tokenizer of bytes.
  void expect_usable(const std::string& path, const std::string& reason) {
    const json model = inspected(path);
    EXPECT_GT(model["parameters"], 0);
    EXPECT_NE(model["tokenizer"]["error"].get<std::string>().find(reason), std::string::npos)
        << model["tokenizer"];
    EXPECT_NE(run("inspect " + path).out.find(reason), std::string::npos);
    const std::string settings = tiny_.settings("init=pretrained model=" + path);
    EXPECT_EQ(run("plan " + settings + " tokenizer=auto").exit_code, 0);
    for (const char* command :
         {"train max_steps=1 output_dir=none ", "eval ", "generate prompt=x ", "data stats "}) {
      const Outcome refused = run(command + settings + " tokenizer=auto" + kErrorsOnly);
      EXPECT_EQ(refused.exit_code, 5) << command << refused.out;
      EXPECT_NE(refused.out.find(reason), std::string::npos) << command << refused.out;
    }
    expect_bytes(path);
  }

  // Trained by bytes, `path` becomes a model with the tokenizer of bytes.
  void expect_bytes(const std::string& path) {
    const std::string result = "out" + std::to_string(++results_);
    tiny_.must_train(result, "method=full max_steps=1 init=pretrained model=" + path);
    const std::string output = tiny_.path(result).string();
    EXPECT_EQ(inspected(output)["tokenizer"]["vocab_size"], 258);
    const std::string text = tiny_.file("text.txt", "Hi");
    EXPECT_EQ(run("data tokenize model=" + output + " data=" + text).out, "256 72 105\n");
  }

  TinyRun tiny_;
  int results_ = 0;
};

TEST_F(SlowForeignTokenizer, WordPieceInGguf) {
  const std::string path = tiny_.file("model.gguf", gguf_with_tokenizer("bert"));
  expect_usable(path, "model.gguf: tokenizer model \"bert\" is not supported");
}

TEST_F(SlowForeignTokenizer, SentencePieceInGguf) {
  const std::string path = tiny_.file("model.gguf", gguf_with_tokenizer("llama"));
  EXPECT_EQ(inspected(path)["tokenizer"]["kind"], "SentencePiece BPE");
  tiny_.must_train("out", "method=full max_steps=1 init=pretrained tokenizer=auto model=" + path);
  const std::string text = tiny_.file("text.txt", "a ab</s>xa");
  for (const std::string& model : {path, tiny_.path("out").string()}) {
    EXPECT_EQ(run("data tokenize model=" + model + " data=" + text).out, "1 3 3 6 2 4 0 5\n");
  }
}

TEST_F(SlowForeignTokenizer, InADirectory) {
  tiny_.must_train("model", "method=full max_steps=1");
  const std::string path = tiny_.path("model").string();
  tiny_.file("model/tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
  expect_usable(path, "a tokenizer model of type Unigram is not supported");
  tiny_.file("model/tokenizer.json", "{\"model\": ");
  expect_usable(path, "tokenizer.json");
}

// A tokenizer that was not used does not go with the result.
TEST_F(SlowForeignTokenizer, OneThatWasNotUsedStaysBehind) {
  tiny_.must_train("model", "method=full max_steps=1");
  tiny_.file("model/tokenizer.json",
             read_text(fs::path(kTestData) / "text/data/smollm_tokenizer.json"));
  tiny_.file("model/tokenizer_config.json", "{}");
  EXPECT_GT(inspected(tiny_.path("model").string())["tokenizer"]["vocab_size"], 258);
  expect_bytes(tiny_.path("model").string());
}

}  // namespace
}  // namespace jackscrew
