// Tokenizers to GGUF and back: the same ids.
#include "text/tokenizer/gguf_tokenizer.h"

#include "tests/formats/gguf_builder.h"
#include "tests/text/fixture.h"
#include "text/tokenizer/byte_map.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {
namespace {

TEST(TokenizerJson, NamesTheTokenThatIsNotUtf8) {
  TokenizerData data;
  data.tokens = {"a", "b\xFF"};
  const auto expect = [&](const std::string& message) {
    try {
      to_tokenizer_json(data) + to_tokenizer_config_json(data);
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), "the tokenizer cannot be written as JSON: " + message);
      EXPECT_EQ(error.hint(), kGiveOwnTokenizer);
    }
  };
  expect("its token 1, \"b\uFFFD\", is not UTF-8");
  data.kinds = {TokenKind::normal, TokenKind::unused};
  data.chat_template = "\xFF";
  expect("invalid UTF-8 byte at index 0: 0xFF");
}

// A file has texts of its own where ids have a gap.
TEST(SameTokens, LeaveOutUnusedIds) {
  TokenizerData a;
  a.tokens = {"a", "", "c"};
  a.kinds = {TokenKind::normal, TokenKind::unused, TokenKind::normal};
  TokenizerData b = a;
  b.tokens[1] = "[PAD1]";
  EXPECT_TRUE(same_tokens(a, b));
  EXPECT_TRUE(same_common_tokens(a, b));
  b.kinds[1] = TokenKind::normal;
  EXPECT_FALSE(same_tokens(a, b));
  EXPECT_FALSE(same_common_tokens(a, b));
  a.tokens[1] = b.tokens[1];  // a padding that one file marks
  EXPECT_FALSE(same_tokens(a, b));
  EXPECT_TRUE(same_common_tokens(a, b));
  EXPECT_TRUE(same_common_tokens(b, a));
  b.kinds[1] = TokenKind::unused;
  b.tokens.push_back("d");
  b.kinds.push_back(TokenKind::normal);
  EXPECT_FALSE(same_tokens(a, b));
  EXPECT_TRUE(same_common_tokens(a, b));
  b.tokens[2] = "e";
  EXPECT_FALSE(same_common_tokens(a, b));
}

TokenizerData there_and_back(const TokenizerData& data) {
  return gguf_tokenizer_data(to_gguf_tokenizer(data), "test");
}

// The lines of a golden file, encoded by both.
void expect_same_ids(const TokenizerData& data, const nlohmann::json& lines) {
  const Tokenizer before(data), after(there_and_back(data));
  for (const std::string line : lines) {
    EXPECT_EQ(before.encode(line, true), after.encode(line, true)) << line;
  }
}

nlohmann::json sentencepiece_lines() {
  return nlohmann::json::parse(read_text(text_data() / "golden_sentencepiece.json"))["lines"];
}

TEST(GgufTokenizer, ByteLevelComesBack) {
  for (const char* name : {"smollm", "llama3"}) {
    SCOPED_TRACE(name);
    TokenizerData data = golden_data(name);
    data.eos = 2;
    data.add_bos = true;
    data.bos = 1;
    expect_same_ids(data, sentencepiece_lines());
    EXPECT_EQ(changed_in_gguf(Tokenizer(data), to_gguf_tokenizer(data)), "");
    const TokenizerData back = there_and_back(data);
    EXPECT_EQ(back.tokens, data.tokens);
    EXPECT_EQ(back.kinds, data.kinds);
    EXPECT_EQ(back.merges, data.merges);
    EXPECT_EQ(back.pre_tokenizer, data.pre_tokenizer);
    EXPECT_EQ(back.ignore_merges, data.ignore_merges);
    EXPECT_EQ(back.eos, 2);
    EXPECT_TRUE(back.add_bos);
  }
}

// Without merges every text would fall apart into bytes, and nobody be told.
TEST(GgufTokenizer, ByteLevelNeedsItsMerges) {
  GgufTokenizerMetadata metadata = to_gguf_tokenizer(golden_data("smollm"));
  metadata.merges.clear();
  expect_error(ErrorKind::model, "tokenizer.ggml.merges is missing",
               [&] { gguf_tokenizer_data(metadata, "m.gguf"); });
  // Where each token is one byte there is nothing to merge.
  metadata.tokens = {"a", "\u0120", "<|end|>"};
  metadata.token_types = {1, 1, 3};
  EXPECT_EQ(gguf_tokenizer_data(metadata, "m.gguf").tokens, metadata.tokens);
}

// What a file is, its first bytes say, as they do for model=.
class GgufTokenizerFile : public DirectoryTest {};

TEST_F(GgufTokenizerFile, IsFoundWhateverItIsCalled) {
  GgufBuilder out;
  out.text("tokenizer.ggml.model", "llama");
  out.texts("tokenizer.ggml.tokens", {"<unk>", "\u2581", "a"});
  out.array<float>("tokenizer.ggml.scores", GgufType::f32, {0.0f, -1.0f, -2.0f});
  out.array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {2, 1, 1});
  for (const char* name : {"m.gguf", "M.GGUF", "blob"}) {
    EXPECT_EQ(read_tokenizer(write(name, out.build())).data.tokens.size(), 3u) << name;
  }
  expect_error(ErrorKind::model, "there is no tokenizer in",
               [&] { read_tokenizer(write("no.gguf", "none")); });
}

// As llama.cpp does: the key of the file, else the name of its pre-tokenizer.
TEST(GgufTokenizer, AddsBosByThePreTokenizerWhereTheFileDoesNotSay) {
  TokenizerData data = golden_data("llama3");
  data.bos = 1;
  GgufTokenizerMetadata metadata = to_gguf_tokenizer(data);
  const auto adds = [&] { return gguf_tokenizer_data(metadata, "test").add_bos; };
  metadata.add_bos = std::nullopt;
  for (const char* pre : {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"}) {
    metadata.pre = pre;
    EXPECT_TRUE(adds()) << pre;
  }
  for (const char* pre : {"", "gpt-2", "smollm", "qwen2", "dbrx"}) {
    metadata.pre = pre;
    EXPECT_FALSE(adds()) << pre;
  }
  metadata.add_bos = true;
  EXPECT_TRUE(adds());
  metadata.pre = "llama-bpe";
  metadata.add_bos = false;
  EXPECT_FALSE(adds());
  metadata.add_bos = std::nullopt;
  metadata.bos_id = -1;
  EXPECT_FALSE(adds());
}

TEST(GgufTokenizer, SentencePieceComesBack) {
  const fs::path path = text_data() / "sentencepiece.model";
  const TokenizerData data = parse_sentencepiece(read_text(path), path.string());
  expect_same_ids(data, sentencepiece_lines());
  const GgufTokenizerMetadata written = to_gguf_tokenizer(data);
  EXPECT_EQ(written.model, "llama");
  EXPECT_EQ(written.token_types[static_cast<size_t>(data.unk)], 2);
  EXPECT_EQ(std::ranges::count(written.token_types, 6), 256);
  EXPECT_EQ(changed_in_gguf(Tokenizer(data), written), "");
  // Its <tool> is normalized, and no space goes behind it.
  nlohmann::json lines;
  for (const std::string line : sentencepiece_lines()) {
    if (line.find("<tool>") == std::string::npos) lines.push_back(line);
  }
  expect_same_ids(golden_data("llama2"), lines);
}

TEST(GgufTokenizer, OnlyATokenThatSpellsAByteIsOne) {
  const fs::path path = text_data() / "sentencepiece.model";
  TokenizerData data = parse_sentencepiece(read_text(path), path.string());
  data.tokens.emplace_back("<0xZZ>");
  data.kinds.push_back(TokenKind::normal);
  EXPECT_EQ(to_gguf_tokenizer(data).token_types.back(), 1);
  EXPECT_EQ(std::ranges::count(to_gguf_tokenizer(data).token_types, 6), 256);
  EXPECT_EQ(byte_of_token("<0x0A>"), std::optional<uint8_t>(10));
  EXPECT_EQ(byte_of_token("<0xab>"), std::optional<uint8_t>(0xAB));
  for (const char* other : {"", "<0x0A", "<0xA>", "<0x-1>", "<0x 1>", "<0x0AB>", "<0X0A>"}) {
    EXPECT_EQ(byte_of_token(other), std::nullopt) << other;
  }
}

// A space at the beginning only, or none behind an added token: a file cannot say that, and a user
// is told.
TEST(GgufTokenizer, SaysWhichTextChanges) {
  for (const char* name : {"metaspace", "llama2"}) {
    const TokenizerData data = golden_data(name);
    EXPECT_NE(changed_in_gguf(Tokenizer(data), to_gguf_tokenizer(data)), "") << name;
  }
  // Only some names stand for a tokenizer that composes letters and their marks.
  TokenizerData composes = golden_data("smollm");
  composes.normalizer = {NormalizerStep{}};
  EXPECT_EQ(changed_in_gguf(Tokenizer(composes), to_gguf_tokenizer(composes)), "cafe\u0301");
  // By this one they are composed here, but not in llama.cpp.
  composes.set_pre_tokenizer("qwen2");
  EXPECT_EQ(to_gguf_tokenizer(composes).pre, "qwen2");
  EXPECT_EQ(changed_in_gguf(Tokenizer(composes), to_gguf_tokenizer(composes)), "cafe\u0301");
}

// Nothing is made of it here, but others heed it.
TEST(GgufTokenizer, KeepsWhetherEosIsAdded) {
  GgufTokenizerMetadata metadata = to_gguf_tokenizer(golden_data("smollm"));
  EXPECT_EQ(metadata.add_eos, false);
  for (const std::optional<bool> adds : {std::optional(true), std::optional<bool>()}) {
    metadata.add_eos = adds;
    EXPECT_EQ(to_gguf_tokenizer(gguf_tokenizer_data(metadata, "test")).add_eos,
              adds.value_or(false));
  }
}

TEST(GgufTokenizer, ARefusalNamesTheFileAndWhatToDo) {
  const GgufTokenizerMetadata good = to_gguf_tokenizer(golden_data("smollm"));
  const auto refusal = [&](const auto& change) {
    GgufTokenizerMetadata metadata = good;
    change(metadata);
    return error_of(ErrorKind::model, [&] { gguf_tokenizer_data(metadata, "m.gguf"); });
  };
  using Metadata = GgufTokenizerMetadata;
  EXPECT_EQ(refusal([](Metadata& to) { to.pre = "gpt-5"; }),
            "m.gguf: unknown pre-tokenizer \"gpt-5\" | give its own tokenizer: tokenizer=DIR");
  EXPECT_EQ(refusal([](Metadata& to) { to.token_types[0] = 0; }),
            "m.gguf: a token is of unknown type 0 | give its own tokenizer: tokenizer=DIR");
  EXPECT_EQ(refusal([](Metadata& to) { to.merges[0] = "one"; }),
            "m.gguf: the merge \"one\" is not two tokens with a space between | give its own "
            "tokenizer: tokenizer=DIR");
  EXPECT_EQ(refusal([](Metadata& to) { to.model = "bert"; }),
            "m.gguf: tokenizer model \"bert\" is not supported | \"gpt2\" (byte-level BPE) and "
            "\"llama\" (SentencePiece's BPE) are");
}

// Words as Hugging Face's tokenizers cut them by these patterns, and llama.cpp by these names.
TEST(GgufTokenizer, KnowsThePreTokenizersOfOtherLlamas) {
  const auto is_like = [](const char* name, const char* other) {
    const NamedPreTokenizer &one = named_pre_tokenizer(name), &two = named_pre_tokenizer(other);
    return one.steps == two.steps && one.ignore_merges == two.ignore_merges;
  };
  EXPECT_TRUE(is_like("falcon3", "llama-bpe"));
  EXPECT_TRUE(is_like("pixtral", "llama-bpe"));
  EXPECT_TRUE(is_like("smaug-bpe", "dbrx"));
  const auto words = [](const char* name) {
    std::vector<std::string> out;
    PreTokenizer(named_pre_tokenizer(name).steps)
        .split("x = 12;\r\n\n  it's \u3000+\u4e2d\u6587",
               [&](std::string_view word) { out.emplace_back(word); });
    return out;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("deepseek-coder"), (Words{"x", " = ", "1", "2", ";", "\r", "\n", "\n", " ", " it",
                                            "'", "s", " ", "\u3000", "+", "\u4e2d\u6587"}));
  EXPECT_EQ(words("seed-coder"), (Words{"x", " =", " ", "1", "2", ";", "\r\n\n", " ", " it", "'s",
                                        " ", "\u3000", "+\u4e2d\u6587"}));
}

TEST(GgufTokenizer, RefusesAPreTokenizerWithoutAName) {
  TokenizerData data = golden_data("smollm");
  data.pre_tokenizer = {{PreTokenizerStep::Kind::regex, "[a-z]+"}};
  expect_error(ErrorKind::model, "no name for the pre-tokenizer", [&] { to_gguf_tokenizer(data); });
}

}  // namespace
}  // namespace jackscrew
