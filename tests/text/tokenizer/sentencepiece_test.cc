// Vocabularies that spell their tokens as text, and what only they need: the normalizer, prefixes,
// byte fallback, SentencePiece's and tiktoken's files.
#include "text/tokenizer/sentencepiece.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/text/fixture.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tiktoken.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// See tools/golden_sentencepiece.py.
Json golden_ids() {
  return Json::parse(read_text(text_data() / "golden_sentencepiece.json"));
}

TokenizerData golden_model() {
  const fs::path path = text_data() / "sentencepiece.model";
  return parse_sentencepiece(read_text(path), path.string());
}

TokenizerData golden_tiktoken() {
  const fs::path path = text_data() / "tiktoken.model";
  return parse_tiktoken(read_text(path), path.string());
}

void expect_ids(const Tokenizer& tokenizer, const Json& lines, const Json& ids) {
  ASSERT_EQ(lines.size(), ids.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto line = lines[i].get<std::string>();
    EXPECT_EQ(tokenizer.encode(line, true), ids[i].get<Ids>()) << line;
  }
}

void expect_decoded(const Tokenizer& tokenizer, const Json& ids, const Json& decoded) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto text = decoded[i].get<std::string>();
    EXPECT_EQ(tokenizer.decode(ids[i].get<Ids>(), false), text) << ids[i];
  }
}

TEST(TextVocabulary, GoldenIds) {
  const Json expected = golden_ids();
  for (const char* name : {"llama2", "metaspace"}) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer(golden_data(name));
    expect_ids(tokenizer, expected["lines"], expected[name]["ids"]);
    expect_decoded(tokenizer, expected[name]["ids"], expected[name]["decoded"]);
  }
}

// As tokenizers merges: what stands on either side of a dropped character.
TEST(TextVocabulary, SpacesMergeOverADroppedCharacter) {
  TokenizerData data;
  data.spelling = Spelling::text;
  const std::string space(kSpaceMark);
  data.tokens = {"a", space, space + space, "?"};
  data.merges = {{space, space}};
  data.normalizer = {{NormalizerStep::Kind::replace, " ", space}};
  EXPECT_EQ(Tokenizer(data).encode("a x a", false), (Ids{0, 2, 0}));
  data.missing_id = 3;
  EXPECT_EQ(Tokenizer(data).encode("a x a", false), (Ids{0, 1, 3, 1, 0}));
}

// A text that streams is the one that is decoded at once, at its beginning and within another.
TEST(TextVocabulary, StreamsAsItDecodes) {
  const Json expected = golden_ids();
  for (const char* name : {"llama2", "metaspace"}) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer(golden_data(name));
    const auto streamed = [&](const Ids& ids, TextPlace place) {
      StreamDecoder stream(tokenizer, true, place);
      std::string text;
      for (const int32_t id : ids) text += stream.push(id);
      return text + stream.finish();
    };
    const Ids word = tokenizer.encode("a", false);
    EXPECT_EQ(streamed(word, TextPlace::begin), "a");
    EXPECT_EQ(streamed(word, TextPlace::inside), " a");
    // Special tokens that are left out are no beginning.
    Ids after_special = word;
    after_special.insert(after_special.begin(), tokenizer.find_special("<s>").value());
    EXPECT_EQ(streamed(after_special, TextPlace::begin), "a");
    for (const Json& line : expected[name]["ids"]) {
      const auto ids = line.get<Ids>();
      for (const TextPlace place : {TextPlace::begin, TextPlace::inside}) {
        EXPECT_EQ(streamed(ids, place), tokenizer.decode(ids, true, place));
      }
    }
  }
}

TEST(SentencePiece, GoldenIds) {
  const Json expected = golden_ids();
  const Json& library = expected["sentencepiece"];
  const Tokenizer tokenizer(golden_model());
  expect_ids(tokenizer, library["lines"], library["ids"]);
  expect_decoded(tokenizer, library["ids"], library["decoded"]);
  expect_ids(tokenizer, expected["lines"], library["marked"]);
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_TRUE(tokenizer.add_bos());
}

TEST(Tiktoken, GoldenIds) {
  const Json expected = golden_ids();
  const Tokenizer tokenizer(golden_tiktoken());
  expect_ids(tokenizer, expected["lines"], expected["tiktoken"]);
  EXPECT_EQ(tokenizer.find_special("<|begin_of_text|>"), tokenizer.bos());
  EXPECT_EQ(tokenizer.find_special("<|end_of_text|>"), tokenizer.eos());
  EXPECT_EQ(tokenizer.find_special("<|finetune_right_pad_id|>"), tokenizer.pad());
  EXPECT_EQ(tokenizer.find_special("<|reserved_special_token_245|>"), tokenizer.vocab_size() - 1);
}

TEST(TextVocabulary, ExportedJsonEncodesTheSame) {
  TokenizerData prefixed = golden_data("smollm");
  prefixed.pre_tokenizer = {
      {PreTokenizerStep::Kind::byte_level, {}, PreTokenizerStep::Prefix::always}};
  for (const TokenizerData& data : {golden_data("llama2"), golden_data("metaspace"), golden_model(),
                                    golden_tiktoken(), prefixed}) {
    const TokenizerData again = parse_tokenizer_json(to_tokenizer_json(data), "again");
    EXPECT_EQ(again.tokens, data.tokens);
    EXPECT_EQ(again.kinds, data.kinds);
    EXPECT_EQ(again.merges, data.merges);
    EXPECT_EQ(again.spelling, data.spelling);
    EXPECT_EQ(again.byte_fallback, data.byte_fallback);
    EXPECT_EQ(again.leading_space, data.leading_space);
    EXPECT_EQ(again.normalizer, data.normalizer);
    EXPECT_EQ(again.normalized_literals, data.normalized_literals);
    EXPECT_EQ(again.pre_tokenizer, data.pre_tokenizer);
    EXPECT_EQ(again.missing_id, data.missing_id);
    EXPECT_EQ(again.fuse_missing, data.fuse_missing);
    EXPECT_EQ(again.add_bos, data.add_bos);
  }
}

TEST(TextVocabulary, PrefixDependsOnWhatStandsBefore) {
  const Tokenizer always(golden_data("llama2"));
  const Tokenizer first(golden_data("metaspace"));
  const auto encoded = [](const Tokenizer& tokenizer, TextPlace place) {
    return tokenizer.decode(tokenizer.encode("a", false, place), false, TextPlace::inside);
  };
  EXPECT_EQ(encoded(always, TextPlace::begin), " a");
  EXPECT_EQ(encoded(always, TextPlace::after_special), " a");
  EXPECT_EQ(encoded(always, TextPlace::inside), "a");
  EXPECT_EQ(encoded(first, TextPlace::begin), " a");
  EXPECT_EQ(encoded(first, TextPlace::after_special), "a");
  EXPECT_EQ(encoded(first, TextPlace::inside), "a");
}

// A conversation is cut where the trained text begins; that must not put a space there.
TEST(TextVocabulary, SegmentsAreOneText) {
  const Tokenizer tokenizer(golden_data("llama2"));
  const std::vector<Segment> segments = {{"<s>", false, true},
                                         {"a jack ", false, false},
                                         {"lifts", true, false},
                                         {"</s>", true, true}};
  const EncodedSegments encoded = encode_segments(tokenizer, segments);
  EXPECT_EQ(tokenizer.decode(encoded.ids, false), "<s> a jack lifts</s>");
  Ids expected = tokenizer.encode("<s>a jack ", true);
  const Ids answer = tokenizer.encode("lifts", true, TextPlace::inside);
  expected.insert(expected.end(), answer.begin(), answer.end());
  expected.push_back(2);
  EXPECT_EQ(encoded.ids, expected);
}

TEST(TextVocabulary, InvalidUtf8IsEncodedByteByByte) {
  const Tokenizer tokenizer(golden_data("llama2"));
  const Ids byte = tokenizer.encode("\xFF", true);
  ASSERT_EQ(byte.size(), 1u);
  EXPECT_EQ(tokenizer.data().tokens[static_cast<size_t>(byte[0])], "<0xFF>");
  for (const char* text :
       {"a\xFF b", "\xC3 a", "a \xF0\x9F", "\xED\xA0\x80", "a\xFF\xFE\xFD c\xFF"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true), false), text);
  }
  // Without byte tokens: the unknown token, once for each byte.
  EXPECT_EQ(Tokenizer(golden_data("metaspace")).encode("\xFF\xFE", true), (Ids{0, 0}));
}

// None of these may take time that grows with the square of the length.
TEST(TextVocabulary, LongHostileTextIsQuick) {
  const size_t size = size_t{1} << 18;
  const auto repeated = [&](const std::string& part) {
    std::string text;
    while (text.size() < size) text += part;
    return text;
  };
  for (const TokenizerData& data :
       {golden_data("llama2"), golden_data("metaspace"), golden_model(), golden_tiktoken()}) {
    const Tokenizer tokenizer(data);
    for (const char* part : {"a", " ", "\u2581", "ab", "<s", "<0x", "\u0316\u0301", "\U0001F600",
                             "\x01", "<tool", "\xC3", "lift"}) {
      const std::string text = repeated(part);
      EXPECT_FALSE(tokenizer.encode(text, true).empty());
    }
  }
}

TEST(Normalizer, ComposesAsUnicodeDefines) {
  const auto nfc = [](std::string text) {
    normalize(std::vector<NormalizerStep>{{}}, TextPlace::begin, text);
    return text;
  };
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfc("\u1E0A\u0323"), "\u1E0C\u0307");                      // reordered, then composed
  EXPECT_EQ(nfc("\u1112\u1161\u11AB \uAC00\u11A8"), "\uD55C \uAC01");  // Hangul
  EXPECT_EQ(nfc("\u0958 \u2126 \u0344"), "\u0915\u093C \u03A9 \u0308\u0301");  // never composed
  EXPECT_EQ(nfc("a\u0315\u0300\u05AE\u0300\u0315b"), "\u00E0\u05AE\u0300\u0315\u0315b");
  EXPECT_EQ(nfc("\U0001D15E"), "\U0001D157\U0001D165");
  EXPECT_EQ(nfc("plain"), "plain");
}

TEST(Gguf, SentencePieceVocabulary) {
  GgufTokenizerMetadata metadata;
  metadata.model = "llama";
  const TokenizerData model = golden_model();
  metadata.tokens = model.tokens;
  // The scores of such models fall with the id.
  for (size_t i = 0; i < model.tokens.size(); ++i) {
    const bool byte = model.tokens[i].starts_with("<0x");
    metadata.scores.push_back(-static_cast<double>(i));
    metadata.token_types.push_back(i == 0                                 ? 2
                                   : model.kinds[i] == TokenKind::special ? 3
                                   : model.kinds[i] == TokenKind::added   ? 4
                                   : byte                                 ? 6
                                                                          : 1);
  }
  metadata.bos_id = 1;
  metadata.eos_id = 2;
  const TokenizerData data = gguf_tokenizer_data(metadata, "m.gguf");
  const Json expected = golden_ids();
  expect_ids(Tokenizer(data), expected["lines"], expected["sentencepiece"]["marked"]);
  EXPECT_TRUE(data.add_bos);
  EXPECT_EQ(data.unk, 0);
  metadata.add_space_prefix = false;
  metadata.add_bos = false;
  const Tokenizer bare(gguf_tokenizer_data(metadata, "m.gguf"));
  EXPECT_EQ(bare.encode("<tool>a", true).size(), 2u);
  EXPECT_FALSE(bare.add_bos());
  metadata.token_types[5] = 9;
  expect_error(ErrorKind::model, "type 9", [&] { gguf_tokenizer_data(metadata, "m.gguf"); });
  metadata.model = "bert";
  expect_error(ErrorKind::model, "m.gguf: tokenizer model \"bert\"",
               [&] { gguf_tokenizer_data(metadata, "m.gguf"); });
}

// One field of a protobuf message: a number, bytes or four bytes.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string number_field(uint64_t number, uint64_t value) {
  return varint(number << 3) + varint(value);
}
std::string bytes_field(uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}

TEST(SentencePiece, RefusesWhatItDoesNotRead) {
  const std::string bpe = number_field(3, 2);
  const std::string rules = number_field(4, 0);  // remove_extra_whitespaces off
  const std::string piece = bytes_field(1, bytes_field(1, "a"));
  const auto refuse = [&](const std::string& part, const std::string& trainer,
                          const std::string& normalizer, const std::string& more = {}) {
    const std::string model = piece + bytes_field(2, trainer) + bytes_field(3, normalizer) + more;
    expect_error(ErrorKind::model, part, [&] { Tokenizer{parse_sentencepiece(model, "t.model")}; });
  };
  refuse("t.model: a SentencePiece model of type Unigram", {}, rules);
  refuse("type Word", number_field(3, 3), rules);
  refuse("of type 7", number_field(3, 7), rules);
  refuse("remove_extra_whitespaces", bpe, {});
  refuse("normalization \"nmt_nfkc\"", bpe,
         bytes_field(1, "nmt_nfkc") + bytes_field(2, "rules") + rules);
  refuse("without escape_whitespaces", bpe, rules + number_field(5, 0));
  refuse("treat_whitespace_as_suffix", bpe + number_field(24, 1), rules);
  refuse("byte_fallback do not agree", bpe + number_field(35, 1), rules);
  refuse("bos token id 1 is outside its 1 tokens", bpe, rules);
  refuse("unknown type 12", bpe, rules, bytes_field(1, bytes_field(1, "b") + number_field(3, 12)));
  refuse("has 1025 bytes", bpe, rules, bytes_field(1, bytes_field(1, std::string(1025, 'b'))));
  refuse("has no score", bpe, rules, bytes_field(1, bytes_field(1, "b") + "\x15\xFF\xFF\xFF\xFF"));
  refuse("field 1 of another type", bpe, rules, number_field(1, 3));
  refuse("a field beyond its end", bpe, rules, varint(9 << 3 | 2) + varint(uint64_t{1} << 62));
  refuse("more than 64 bits", bpe, rules, std::string(12, '\xFF'));
  refuse("a field of unknown type", bpe, rules, "\x0C");
  // Every prefix of a file, and the file with one byte changed, is read or refused, and no worse.
  const std::string good = read_text(text_data() / "sentencepiece.model");
  for (size_t i = 0; i < good.size(); i += 7) {
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 0x85);
    for (const std::string& bad : {good.substr(0, i), changed}) {
      try {
        Tokenizer{parse_sentencepiece(bad, "t.model")};
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::model);
      }
    }
  }
}

TEST(Tiktoken, RefusesOtherLines) {
  EXPECT_TRUE(is_tiktoken("IQ== 0\nIg== 1\n"));
  for (const char* other :
       {"", "\x0A\x0E", "IQ== 1\n", "IQ= 0\n", "I-== 0", "IQ==\n", "{\"a\": 0}"}) {
    EXPECT_FALSE(is_tiktoken(other)) << other;
  }
  const auto refuse = [](const std::string& part, const char* text) {
    expect_error(ErrorKind::model, part, [&] { parse_tiktoken(text, "t.model"); });
  };
  refuse("t.model: line 2 is not a token in base64 and its rank 1", "IQ== 0\nIg== 2\n");
  refuse("line 2", "IQ== 0\n\nIg== 1\n");
  refuse("line 1", "IQ== 0x\n");
  expect_error(ErrorKind::model, "are both",
               [] { Tokenizer{parse_tiktoken("IQ== 0\nIQ== 1\n", "t.model")}; });
}

class TokenizerModel : public DirectoryTest {};

TEST_F(TokenizerModel, IsReadWithTheConfigurationBeside) {
  const auto find = [&] {
    return parse_tokenizer_texts(read_tokenizer_texts(directory_), directory_);
  };
  EXPECT_FALSE(find().has_value());
  write("tokenizer.model", read_text(text_data() / "sentencepiece.model"));
  const auto read = [&] { return find().value(); };
  using Kind = NormalizerStep::Kind;
  EXPECT_EQ(read().normalizer.front().kind, Kind::prepend);
  write("tokenizer_config.json", R"({"add_bos_token": false, "add_prefix_space": false,
      "added_tokens_decoder": {"560": {"content": "<new>", "special": true}}, "pad_token": "<new>"})");
  EXPECT_EQ(read().normalizer.front().kind, Kind::replace);
  EXPECT_EQ(read().leading_space, LeadingSpace::keep);
  EXPECT_FALSE(read().add_bos);
  EXPECT_EQ(read().pad, 560);
  EXPECT_EQ(Tokenizer(read()).find_special("<new>"), 560);
  write("tokenizer_config.json", R"({"legacy": false})");
  const Tokenizer tokenizer(read());
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<s>a a", true), false, TextPlace::inside),
            " a<s>a a");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" a", true), false), "a");
  for (const char* legacy : {"true", "false"}) {
    write("tokenizer_config.json", fmt::format(R"({{"legacy": {}}})", legacy));
    write("added_tokens.json", R"({"<new>": 560})");
    const auto ids = Tokenizer(read()).encode("a<new>a", true);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 560), 1) << legacy;
    fs::remove(directory_ / "added_tokens.json");
  }
  write("tokenizer_config.json", R"({"add_eos_token": true})");
  expect_error(ErrorKind::model, "add_eos_token", read);
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})");
  expect_error(ErrorKind::model, "the id \"x\"", read);
  write("tokenizer_config.json", "{}");
  write("tokenizer.model", read_text(text_data() / "tiktoken.model"));
  expect_error(ErrorKind::model, "a tiktoken file of", read);
  // tokenizer.json comes first.
  write("tokenizer.json", read_text(text_data() / "llama2_tokenizer.json"));
  EXPECT_EQ(read().tokens, golden_data("llama2").tokens);
}

// As Hugging Face's tokenizers do, whose model finds it in the vocabulary: normalized, the literal
// is "\u2581\u00e9", which is not in the text.
TEST(TextVocabulary, AnAddedCharacterStaysItsToken) {
  TokenizerData data;
  data.spelling = Spelling::text;
  data.tokens = {"<unk>", "\u2581", "c", "a", "f", "\u00e9"};
  data.kinds.assign(6, TokenKind::normal);
  data.kinds[0] = TokenKind::special;
  data.kinds[5] = TokenKind::added;
  data.missing_id = data.unk = 0;
  data.normalizer.push_back({NormalizerStep::Kind::prepend, {}, "\u2581"});
  data.normalized_literals = {5};
  EXPECT_EQ(Tokenizer(data).encode("caf\u00e9", false), (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(Tokenizer(data).encode("\u00e9", false), (Ids{5}));
  // A special token's spelling is text where special tokens are not looked for.
  data.kinds[5] = TokenKind::special;
  EXPECT_EQ(Tokenizer(data).encode("caf\u00e9", false), (Ids{1, 2, 3, 4, 0}));
}

TEST(TextVocabulary, RefusesWhatCannotBeRight) {
  const Json good = Json::parse(read_text(text_data() / "llama2_tokenizer.json"));
  const auto refuse = [&](const std::string& part, const char* patch) {
    Json bad = good;
    bad.merge_patch(Json::parse(patch));
    expect_error(ErrorKind::model, part,
                 [&] { Tokenizer{parse_tokenizer_json(bad.dump(), "t.json")}; });
  };
  refuse("tokens for only 255 of 256", R"({"model": {"vocab": {"<0x41>": null}}})");
  refuse("neither ByteLevel nor a decoder", R"({"decoder": null})");
  refuse("a ByteLevel decoder without", R"({"decoder": {"type": "ByteLevel"}})");
  refuse("the decoder {", R"({"decoder": {"type": "Replace", "pattern": {"String": "_"},
      "content": " "}})");
  refuse("the decoder {", R"({"decoder": {"type": "Strip", "content": " ", "start": 2,
      "stop": 0}})");
  refuse("the decoder CTC", R"({"decoder": {"type": "CTC"}})");
  refuse("the normalizer Lowercase", R"({"normalizer": {"type": "Lowercase"}})");
}

}  // namespace
}  // namespace jackscrew
