#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "base/philox.h"
#include "tests/text/fixture.h"
#include "text/tokenizer/byte_map.h"
#include "text/tokenizer/tokenizer_config.h"
#include "text/utf8.h"

namespace jackscrew {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// A vocabulary of the 256 bytes, then `extra` tokens in the byte map.
TokenizerData byte_data(const std::vector<std::string>& extra = {}) {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(mapped_character(static_cast<uint8_t>(byte)));
  }
  data.tokens.insert(data.tokens.end(), extra.begin(), extra.end());
  data.kinds.assign(data.tokens.size(), TokenKind::normal);
  data.set_pre_tokenizer("gpt-2");
  return data;
}

TEST(Utf8, AcceptsExactlyTheScalarValues) {
  const auto status = [](std::string_view text) { return utf8_step(text, 0).status; };
  for (const char* valid : {"a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
                            "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(status(valid), Utf8Status::valid);
    EXPECT_EQ(utf8_step(valid, 0).length, std::string_view(valid).size());
  }
  for (const char* invalid : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                              "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5", "\xFF", "\xC3("}) {
    EXPECT_EQ(status(invalid), Utf8Status::invalid) << invalid;
  }
  for (const char* incomplete : {"\xC3", "\xE2\x82", "\xF0\x9F\x98"}) {
    EXPECT_EQ(status(incomplete), Utf8Status::incomplete);
  }
}

TEST(ByteMap, RoundTripsEveryByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    EXPECT_EQ(unmap_bytes(map_bytes(one)), one);
  }
  EXPECT_EQ(map_bytes(" \n"), "\u0120\u010A");
  EXPECT_EQ(unmap_bytes("a b"), std::nullopt);  // a space stands for nothing
  EXPECT_EQ(unmap_bytes("\u4E00"), std::nullopt);
}

TEST(Tokenizer, GoldenIds) {
  const Json expected = golden();
  for (const char* name : {"smollm", "llama3"}) {
    const Tokenizer tokenizer(golden_data(name));
    for (size_t i = 0; i < expected["lines"].size(); ++i) {
      const auto line = expected["lines"][i].get<std::string>();
      EXPECT_EQ(tokenizer.encode(line, true), expected[name][i].get<Ids>()) << name << ": " << line;
    }
  }
}

TEST(PreTokenizer, GoldenWords) {
  const Json expected = golden();
  for (const auto& [name, lines] : expected["words"].items()) {
    const PreTokenizer pre_tokenizer(named_pre_tokenizer(name).steps);
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto line = expected["lines"][i].get<std::string>();
      std::vector<int64_t> lengths;
      std::string joined;
      pre_tokenizer.split(line, [&](std::string_view word) {
        joined += word;
        lengths.push_back(std::count_if(word.begin(), word.end(), [](char c) {
          return (static_cast<uint8_t>(c) & 0xC0) != 0x80;  // every byte that begins a character
        }));
      });
      EXPECT_EQ(lengths, lines[i].get<std::vector<int64_t>>()) << name << ": " << line;
      EXPECT_EQ(joined, line);
    }
  }
}

TEST(PreTokenizer, ClassesAreThoseOfUnicode) {
  const std::vector<PreTokenizerStep> steps = {{PreTokenizerStep::Kind::regex, R"(\w+|[\s.]+)"}};
  std::vector<std::string> words;
  PreTokenizer(steps).split("gr\u00F6\u00DFe \u3000.\u180E",
                            [&](std::string_view word) { words.emplace_back(word); });
  EXPECT_EQ(words, (std::vector<std::string>{"gr\u00F6\u00DFe", " \u3000.", "\u180E"}));
}

// As Hugging Face's tokenizers cut them, whose engine is Oniguruma.
TEST(PreTokenizer, PatternsMeanWhatTheyMeanToOniguruma) {
  using Words = std::vector<std::string>;
  const std::tuple<const char*, const char*, Words> cases[] = {
      {R"(\w+)",
       "ab\u0308\u00b2 \u00e9\u203fx\u00bd \u2167-",
       {"ab\u0308\u00b2", " ", "\u00e9\u203fx\u00bd", " ", "\u2167", "-"}},
      {R"([\w]+)", "ab\u0308\u00b2 \u2167-", {"ab\u0308", "\u00b2 ", "\u2167", "-"}},
      {R"([^\W\d_]+)", "ab1_c\u00b2\u00e9 -", {"ab", "1_", "c", "\u00b2", "\u00e9", " -"}},
      {R"([\S\d]+)", "a 1b", {"a", " ", "1b"}},
      {R"([\W]+)", "a- b", {"a", "- ", "b"}},
      {R"(\p{Han}+|[^\p{Han}]+)",
       "\u4e2d\u6587\u3001\u4e2d\u6587\u3002x",
       {"\u4e2d\u6587", "\u3001", "\u4e2d\u6587", "\u3002x"}},
      {R"(\P{Han}+)", "\u3001x\u4e2d", {"\u3001x", "\u4e2d"}},
      {R"([[:punct:]]+)", "a\u00a9\u20ac!b", {"a", "\u00a9\u20ac!", "b"}},
      {R"(\h+)", "xyz0fAg ab", {"xyz", "0fA", "g ", "ab"}},
      {R"(\ba)", "ba a\u0301a a", {"ba ", "a", "\u0301a ", "a"}},
      // The ends of lines, not of the text alone.
      {"^a", "a\na\nba", {"a", "\n", "a", "\nba"}},
      {"a$", "a\na\nba\n", {"a", "\n", "a", "\nb", "a", "\n"}},
      {R"(\s+$)", "a  \nb  \n", {"a", "  ", "\nb", "  \n"}},
      {R"(\n^|[^^$])", "a\n^$\n", {"a", "\n", "^$", "\n"}},
      // Behind {} a + repeats once more, and is not possessive; as does a ? behind a fixed number.
      {"a{1,2}+a", "aaaab", {"aaaa", "b"}},
      {"\u00e9{2}+x|b", "a\u00e9\u00e9\u00e9\u00e9xb", {"a", "\u00e9\u00e9\u00e9\u00e9x", "b"}},
      {"(?:ab|c){2}+a", "ababcca", {"ababcca"}},
      {"[a-c]{1,3}+c", "abcabc", {"abcabc"}},
      {R"(a{1}{2}+|\x{4e00}{2}+)", "aaaaa\u4e00\u4e00", {"aaaa", "a", "\u4e00\u4e00"}},
      {"a{2}?b", "aab ab b", {"aab", " a", "b", " ", "b"}},
      {"a{2,}?", "aaaa", {"aa", "aa"}},
      {"a++", "aaa", {"aaa"}},
      {"a?+a", "aa a", {"aa", " a"}},
      {"a{,2}b", "aaabb{,2}b", {"a", "aab", "b", "{,2}", "b"}},
      {"a{x}|b{,}|c{", "a{x}b{,}c{", {"a{x}", "b{,}", "c{"}},
      // The option by which a dot is any character; and a bar behind an option is within it.
      {"(?m)a.b", "a\nb", {"a\nb"}},
      {"a.b", "a\nba\rb", {"a\nb", "a\rb"}},
      {"(?m-i:a.)b|c.", "a\nbc\n", {"a\nb", "c\n"}},
      {"a(?i)b|c", "ab aB c aC", {"ab", " ", "aB", " c ", "aC"}},
      {"(a(?i)b|c)d", "aBd Cd cd aCd aD", {"aBd", " Cd cd ", "aCd", " aD"}},
      {R"(\v|[\v])", "a\x0b\n", {"a", "\x0b", "\n"}},
      {R"(\Qa\E|[\V])", "QaE aV", {"QaE", " a", "V"}},
      // An empty match cuts, but not where the last one ended.
      {R"((?=(\d{3})+(?!\d)))", "1234567", {"1", "234", "567"}},
      {"(?=[A-Z])", "helloWorld\u00c4Bc", {"hello", "World\u00c4", "Bc"}},
      {"(?<=a)", "aab", {"a", "a", "b"}},
      {"a*", "baac", {"b", "aa", "c"}},
      {"|a", "aab", {"a", "a", "b"}},
      {"a|", "bab", {"b", "a", "b"}},
      {"x*", "\u00e4\u00f6", {"\u00e4", "\u00f6"}},
      {"$", "ab", {"ab"}},
  };
  for (const auto& [pattern, text, want] : cases) {
    const std::vector<PreTokenizerStep> steps = {{PreTokenizerStep::Kind::regex, pattern}};
    Words words;
    PreTokenizer(steps).split(text, [&](std::string_view word) { words.emplace_back(word); });
    EXPECT_EQ(words, want) << pattern;
  }
  for (const char* pattern : {"(?x)a b", "(?s:a.b)"}) {
    const std::vector<PreTokenizerStep> steps = {{PreTokenizerStep::Kind::regex, pattern}};
    expect_error(ErrorKind::model, "has the options \"", [&] { PreTokenizer{steps}; });
  }
}

// As Hugging Face's tokenizers do.
TEST(Tokenizer, AWordThatIsOneTokenIsSpelledInTheByteMap) {
  TokenizerData data = byte_data({"\u4f60", map_bytes("\u597d")});
  data.ignore_merges = true;
  const Tokenizer tokenizer(data);
  EXPECT_EQ(tokenizer.encode("\u4f60", false), (Ids{0xE4, 0xBD, 0xA0}));
  EXPECT_EQ(tokenizer.encode("\u597d", false), (Ids{257}));
}

// U+00E9 is how the byte E9 is spelled.
TEST(Tokenizer, ALiteralThatIsSpelledAsAByteStaysItsToken) {
  TokenizerData data = byte_data();
  data.kinds[0xE9] = TokenKind::added;
  ASSERT_EQ(data.tokens[0xE9], "\u00e9");
  const Tokenizer tokenizer(data);
  EXPECT_EQ(tokenizer.encode("x\u9F54y", false), (Ids{'x', 0xE9, 0xBD, 0x94, 'y'}));
  EXPECT_EQ(tokenizer.encode("\u00e9", false), (Ids{0xE9}));
}

TEST(Tokenizer, ExportedJsonEncodesTheSame) {
  const Json expected = golden();
  for (const char* name : {"smollm", "llama3"}) {
    TokenizerData data = golden_data(name);
    data.eos = Tokenizer(data).find_special("<|im_end|>").value();
    data.chat_template = "{{ '<|im_start|>' }}";
    data.tool_template = "{{ tools }}";
    TokenizerData again = parse_tokenizer_json(to_tokenizer_json(data), "again");
    TokenizerConfigFiles beside;
    beside.config = {"config", to_tokenizer_config_json(data)};
    apply_tokenizer_config(again, beside, VocabularyFile::tokenizer_json);
    EXPECT_EQ(again.tokens, data.tokens);
    EXPECT_EQ(again.kinds, data.kinds);
    EXPECT_EQ(again.merges, data.merges);
    EXPECT_EQ(again.pre_tokenizer, data.pre_tokenizer);
    EXPECT_EQ(again.ignore_merges, data.ignore_merges);
    EXPECT_EQ(again.add_bos, data.add_bos);
    EXPECT_EQ(again.bos, data.bos);
    EXPECT_EQ(again.eos, data.eos);
    EXPECT_EQ(again.chat_template, data.chat_template);
    EXPECT_EQ(again.tool_template, data.tool_template);
  }
  EXPECT_FALSE(golden_data("smollm").add_bos);
  EXPECT_TRUE(golden_data("llama3").add_bos);
}

TEST(Tokenizer, NamedPreTokenizersMatchTheFiles) {
  const TokenizerData smollm = golden_data("smollm");
  EXPECT_EQ(pre_tokenizer_name(smollm.pre_tokenizer, smollm.ignore_merges), "smollm");
  const TokenizerData llama3 = golden_data("llama3");
  EXPECT_EQ(pre_tokenizer_name(llama3.pre_tokenizer, llama3.ignore_merges), "llama-bpe");
  expect_error(ErrorKind::model, "unknown pre-tokenizer \"smolm\"",
               [] { named_pre_tokenizer("smolm"); });
  // The fallback of converters that do not know the tokenizer: three digits at a time.
  TokenizerData data = byte_data();
  data.set_pre_tokenizer("default");
  std::vector<std::string> words;
  PreTokenizer(data.pre_tokenizer).split("a 12345+x", [&](std::string_view word) {
    words.emplace_back(word);
  });
  EXPECT_EQ(words, (std::vector<std::string>{"a", " ", "123", "45", "+", "x"}));
}

TEST(Tokenizer, SpecialTokensOnRequestAndLongestFirst) {
  TokenizerData data = byte_data({"<s>", "<s>>", "<user>", "<"});
  for (const size_t i : {size_t{256}, size_t{257}}) data.kinds[i] = TokenKind::special;
  data.kinds[258] = TokenKind::added;
  data.tokens[static_cast<size_t>('<')] =
      "spare";  // the byte's own token gives way to an added one
  data.kinds[259] = TokenKind::added;
  const Tokenizer tokenizer(data);
  EXPECT_EQ(tokenizer.encode("<s><s>>a", true), (Ids{256, 257, 'a'}));
  EXPECT_EQ(tokenizer.encode("<s>", false), (Ids{259, 's', '>'}));
  EXPECT_EQ(tokenizer.encode("<user><", false), (Ids{258, 259}));
  EXPECT_EQ(tokenizer.find_special("<s>"), 256);
  EXPECT_EQ(tokenizer.find_special("a"), std::nullopt);
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 258}, true), "a<user>");
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 258}, false), "<s>a<user>");
}

// One that is nothing once it is normalized hides no other.
TEST(Tokenizer, AddedTokensAreFoundBesideOneThatIsRemoved) {
  TokenizerData data = byte_data({"x", "##", "xb"});
  data.tokens[static_cast<size_t>('x')] = "spare";
  data.merges = {{"x", "b"}};
  data.kinds[256] = data.kinds[257] = TokenKind::added;
  data.normalizer.push_back({NormalizerStep::Kind::replace, "#", ""});
  ASSERT_EQ(Tokenizer(data).encode("xb", false), (Ids{256, 'b'}));
  data.normalized_literals = {256, 257};
  EXPECT_EQ(Tokenizer(data).encode("xb##", false), (Ids{256, 'b'}));
}

TEST(Tokenizer, InvalidUtf8IsEncodedByteByByte) {
  TokenizerData data = byte_data({"ab", "\u00C3\u00A9"});
  data.merges = {{"a", "b"}, {"\u00C3", "\u00A9"}};
  const Tokenizer tokenizer(data);
  EXPECT_EQ(tokenizer.encode("ab\xFF\xC3(ab\xC3\xA9\xC3", true),
            (Ids{256, 0xFF, 0xC3, '(', 256, 257, 0xC3}));
  // Any bytes whatever come back; the seeds make each length's bytes different.
  for (uint32_t length = 0; length < 300; ++length) {
    const RandomStream random = RandomStream::make(length, RandomPurpose::init, 0, 0);
    std::string bytes;
    for (uint32_t i = 0; i < length; ++i) bytes += static_cast<char>(random.bits(i) & 0xFF);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes, true), false), bytes);
  }
}

TEST(Tokenizer, BytesWithoutATokenAreDroppedOrNamed) {
  TokenizerData data = byte_data({"ab", "<unk>"});
  data.merges = {{"a", "b"}};
  data.tokens[1] = "spare";
  data.pre_tokenizer.clear();  // the whole text is one word
  EXPECT_EQ(Tokenizer(data).encode("a\x01\x01"
                                   "b",
                                   true),
            (Ids{256}));
  data.missing_id = 257;
  EXPECT_EQ(Tokenizer(data).encode("a\x01\x01"
                                   "b",
                                   true),
            (Ids{'a', 257, 257, 'b'}));
  data.fuse_missing = true;
  EXPECT_EQ(Tokenizer(data).encode("a\x01\x01"
                                   "b",
                                   true),
            (Ids{'a', 257, 'b'}));
}

// The scan for short words and the queue for long ones are two ways to the same merges.
TEST(Tokenizer, LongWordsMergeAsShortOnes) {
  TokenizerData data = byte_data({"aa", "aaaa", "ba", "baaa"});
  data.merges = {{"a", "a"}, {"aa", "aa"}, {"b", "a"}, {"ba", "aa"}};
  const Tokenizer tokenizer(data);
  for (size_t length = 40; length < 60; ++length) {
    Ids expected(length / 4, 257);
    if (length % 4 >= 2) expected.push_back(256);
    if (length % 2 == 1) expected.push_back('a');
    EXPECT_EQ(tokenizer.encode(std::string(length, 'a'), true), expected) << length;
  }
  const std::string word = std::string(200000, 'a') + "b";
  EXPECT_EQ(tokenizer.encode(word, true).size(), 50001u);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, ' '), true).size(), size_t{1} << 20);
}

TEST(Tokenizer, ManyThreadsAgree) {
  const Tokenizer tokenizer = smollm_tokenizer();
  const auto text = golden()["lines"].dump();
  const Ids expected = tokenizer.encode(text, true);
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text, true); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, RefusesWhatCannotBeRight) {
  const auto refuse = [](const std::string& part,
                         const std::function<void(TokenizerData&)>& spoil) {
    TokenizerData data = byte_data({"ab"});
    data.merges = {{"a", "b"}};
    spoil(data);
    expect_error(ErrorKind::model, part, [&] { Tokenizer{data}; });
  };
  refuse("eos token id 257", [](TokenizerData& d) { d.eos = 257; });
  refuse("bos token id -2", [](TokenizerData& d) { d.bos = -2; });
  refuse("names none", [](TokenizerData& d) { d.add_bos = true; });
  refuse("are both \"ab\"", [](TokenizerData& d) { d.tokens[7] = "ab"; });
  refuse("is empty", [](TokenizerData& d) { d.tokens[7] = ""; });
  refuse("needs the token \"ba\"", [](TokenizerData& d) { d.merges.emplace_back("b", "a"); });
  refuse("needs the token \"xyz\"", [](TokenizerData& d) { d.merges.emplace_back("xyz", "a"); });
  refuse("token types", [](TokenizerData& d) { d.kinds.pop_back(); });
  refuse("no tokens", [](TokenizerData& d) { d = {}; });
  refuse("not byte-level", [](TokenizerData& d) {
    d.tokens = {"hello"};
    d.kinds = {TokenKind::normal};
    d.merges.clear();
  });
  refuse("does not compile", [](TokenizerData& d) {
    d.pre_tokenizer = {{PreTokenizerStep::Kind::regex, "(a"}};
  });
  refuse("nests character classes", [](TokenizerData& d) {
    d.pre_tokenizer = {{PreTokenizerStep::Kind::regex, "[a[b]]"}};
  });
  expect_error(ErrorKind::model, "not two tokens", [] { parse_merge("ab"); });
  expect_error(ErrorKind::data, "outside the vocabulary",
               [] { Tokenizer(byte_data()).decode(Ids{256}, false); });
}

TEST(StreamDecoder, ReleasesOnlyCompleteCharacters) {
  TokenizerData data = byte_data({"<s>"});
  data.kinds[256] = TokenKind::special;
  const Tokenizer tokenizer(data);
  StreamDecoder stream(tokenizer, true);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\U0001F600");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('x'), "\uFFFDx");
  EXPECT_EQ(stream.push(0xFF), "\uFFFD");
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

// What transformers 5 writes for a GGUF whose tokenizer is byte-level: SentencePiece's decoders,
// which find nothing there, and then ByteLevel.
TEST(TokenizerJson, ReadsDecodersThatFindNothing) {
  const Json good = Json::parse(read_text(text_data() / "smollm_tokenizer.json"));
  const char* patch = R"({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true}]}})";
  Json patched = good;
  patched.merge_patch(Json::parse(patch));
  const Tokenizer tokenizer(parse_tokenizer_json(patched.dump(), "t.json"));
  const Tokenizer plain(parse_tokenizer_json(good.dump(), "t.json"));
  for (const char* text : {"Hello  world", "\u2581 <0x41> \u00e9", "<|im_start|>a"}) {
    const auto ids = tokenizer.encode(text, true);
    EXPECT_EQ(ids, plain.encode(text, true));
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
  // Where they would find something, other text would come of it than here.
  for (const char* content : {"<0x41>", "<0x4a>", "a\u2581"}) {
    Json bad = patched;
    bad["added_tokens"].push_back({{"id", 600}, {"content", content}, {"special", false}});
    expect_error(ErrorKind::model, "the decoder ",
                 [&] { parse_tokenizer_json(bad.dump(), "t.json"); });
  }
}

// As Hugging Face's tokenizers do.
TEST(TokenizerJson, OfEqualMergesTheLastCounts) {
  Json file = Json::parse(read_text(text_data() / "smollm_tokenizer.json"));
  const auto ids = [&](const Json& merges) {
    file["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}};
    file["model"]["merges"] = merges;
    file["added_tokens"] = Json::array();
    return Tokenizer(parse_tokenizer_json(file.dump(), "t.json")).encode("abc", false);
  };
  EXPECT_EQ(ids({"a b", "b c"}), (Ids{3, 2}));
  EXPECT_EQ(ids({"a b", "b c", "a b"}), (Ids{0, 4}));
  EXPECT_EQ(ids({"a b", "b c", "b c"}), (Ids{3, 2}));
}

TEST(TokenizerJson, NamesWhatItCannotRead) {
  const Json good = Json::parse(read_text(text_data() / "smollm_tokenizer.json"));
  const auto refuse = [&](const std::string& part, const char* patch) {
    Json bad = good;
    bad.merge_patch(Json::parse(patch));
    expect_error(ErrorKind::model, part, [&] { parse_tokenizer_json(bad.dump(), "t.json"); });
  };
  refuse("t.json: a tokenizer model of type Unigram", R"({"model": {"type": "Unigram"}})");
  refuse("the normalizer NFKC", R"({"normalizer": {"type": "NFKC"}})");
  refuse("a Replace of {\"Regex\"", R"({"normalizer": {"type": "Replace", "pattern": {"Regex": "a"},
      "content": ""}})");
  const std::string long_prefix(65, 'x');
  refuse("more than 64 times",
         (R"({"normalizer": {"type": "Prepend", "prepend": ")" + long_prefix + R"("}})").c_str());
  std::string doubled = R"({"type": "NFC"})";
  for (int i = 0; i < 7; ++i) {
    doubled += R"(, {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  }
  refuse("more than 64 times",
         (R"({"normalizer": {"type": "Sequence", "normalizers": [)" + doubled + "]}}").c_str());
  refuse("the pre-tokenizer Whitespace", R"({"pre_tokenizer": {"type": "Whitespace"}})");
  refuse("changes the pieces of another", R"({"pre_tokenizer": {"type": "Sequence",
      "pretokenizers": [{"type": "Digits"}, {"type": "Metaspace", "replacement": "_"}]}})");
  refuse("Metaspace with \"ab\"",
         R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}})");
  refuse("prepend_scheme \"last\"", R"({"pre_tokenizer": {"type": "Metaspace",
      "replacement": "_", "prepend_scheme": "last"}})");
  refuse("changes the pieces of another", R"({"pre_tokenizer": {"type": "Sequence",
      "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel", "add_prefix_space": true}]}})");
  refuse("without use_regex", R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers":
      [{"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]}})");
  refuse("the decoder WordPiece", R"({"decoder": {"type": "WordPiece"}})");
  refuse("after ByteLevel", R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers":
      [{"type": "ByteLevel", "add_prefix_space": false}, {"type": "Digits"}]}})");
  refuse("\"Removed\"", R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"},
      "behavior": "Removed", "invert": false}})");
  const auto refuse_many = [&](const std::string& part, const char* section, const char* list,
                               const char* type, int count) {
    Json bad = good;
    bad[section] = {{"type", "Sequence"}};
    for (int i = 0; i < count; ++i) bad[section][list].push_back({{"type", type}});
    expect_error(ErrorKind::model, part, [&] { parse_tokenizer_json(bad.dump(), "t.json"); });
  };
  refuse_many("a sequence of 60000 pre-tokenizers, more than 64, is not", "pre_tokenizer",
              "pretokenizers", "Digits", 60000);
  refuse_many("a sequence of 65 normalizers, more than 64, is not", "normalizer", "normalizers",
              "NFC", 65);
  refuse("without the ByteLevel", R"({"pre_tokenizer": null})");
  refuse("post-processor BertProcessing", R"({"post_processor": {"type": "BertProcessing"}})");
  refuse("after the text", R"({"post_processor": {"type": "TemplateProcessing", "single":
      [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|im_end|>"}}]}})");
  for (const char* ids : {"[5,6]", "[2]", "[]"}) {
    refuse(fmt::format("adds the ids {} for \"<|im_start|>\", whose id is 1", ids),
           fmt::format(R"({{"post_processor": {{"type": "TemplateProcessing",
               "single": [{{"SpecialToken": {{"id": "<|im_start|>"}}}}],
               "special_tokens": {{"<|im_start|>": {{"ids": {}}}}}}}}})",
                       ids)
               .c_str());
  }
  for (const Json& merges : {Json(nullptr), Json::object(), Json("a b")}) {
    Json bad = good;
    bad["model"]["merges"] = merges;
    expect_error(ErrorKind::model, "t.json: \"merges\" is not a list",
                 [&] { parse_tokenizer_json(bad.dump(), "t.json"); });
  }
  refuse("with lstrip", R"({"added_tokens": [{"id": 9, "content": "x", "lstrip": true}]})");
  refuse("both have id 5", R"({"added_tokens": [{"id": 5, "content": "x"}]})");
  refuse("has id 99999999", R"({"model": {"vocab": {"x": 99999999}}})");
  refuse("\"model\" is missing", R"({"model": null})");
  refuse("continuing_subword_prefix", R"({"model": {"continuing_subword_prefix": "##"}})");
  refuse("t.json: \"y\" is not an integer", R"({"model": {"vocab": {"x": "y"}}})");
  refuse("t.json: 1e+29 is not an integer", R"({"model": {"vocab": {"x": 1e29}}})");
  expect_error(ErrorKind::model, "t.json: ", [] { parse_tokenizer_json("{", "t.json"); });
  expect_error(ErrorKind::model, "t.json: an object", [] { parse_tokenizer_json("[]", "t.json"); });
  expect_error(ErrorKind::model, "nested deeper",
               [] { parse_tokenizer_json(std::string(1 << 20, '['), "t.json"); });
  // Every prefix of a file is refused, none crashes.
  const std::string text = good.dump();
  for (size_t size = 0; size < text.size(); size += 97) {
    EXPECT_THROW(parse_tokenizer_json(text.substr(0, size), "t.json"), Error);
  }
}

}  // namespace
}  // namespace jackscrew
