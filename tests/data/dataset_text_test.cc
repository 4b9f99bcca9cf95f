// Texts as examples: windows of them, and the parts in which they are read.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/map_guard.h"
#include "data/dataset_builder.h"
#include "tests/data/dataset_fixture.h"
#include "text/tokenizer/byte_map.h"

namespace jackscrew {
namespace {

using Ids = std::vector<int32_t>;

// Nor would the reading go on without the record.
TEST_F(DatasetTest, AFileThatIsCutShortHasNoBadRecord) {
  const BusErrors bus_errors;
  const std::string record = R"({"instruction": "a", "output": "b"})";
  for (const bool skip : {false, true}) {
    const fs::path file = write("cut.jsonl", record + "\n" + record + "\n");
    DatasetOptions o = options(16);
    o.skip_bad_records = skip;
    const auto cut = [&](int64_t) { fs::resize_file(file, 0); };
    const std::string error = error_of(
        ErrorKind::data, [&] { Dataset::read(file, tokenizer_, o, DataPart::train, cut); });
    EXPECT_TRUE(error.starts_with(file.string() + ": the file was cut short")) << error;
    EXPECT_EQ(error.find("on_bad_record"), std::string::npos) << error;
  }
}

TEST_F(DatasetTest, TextFilesBecomeWindows) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += fmt::format("Line {} \xFF of the text.\n", i);
  const Ids ids = tokenizer_.encode(text, true);
  const Dataset data = read("a.txt", text, options(16));
  Ids joined;
  int64_t targets = 0;
  for (const Example& example : examples_of(data)) {
    EXPECT_LE(example.ids.size(), 16u);
    joined.insert(joined.end(), example.ids.begin(), example.ids.end());
    EXPECT_EQ(example.target_count(), static_cast<int64_t>(example.ids.size()) - 1);
    targets += example.target_count();
  }
  Ids expected = ids;
  if (ids.size() % 16 == 1) expected.pop_back();
  EXPECT_EQ(joined, expected);
  EXPECT_EQ(data.stats().trained_tokens, targets);
  EXPECT_EQ(data.stats().records, 1);
  EXPECT_EQ(data.stats().truncated, 0);
  EXPECT_EQ(data.stats().notes.not_utf8, 40);
  EXPECT_EQ(
      data_warnings(data.stats()),
      std::vector<std::string>{"40 bytes of text are not UTF-8 and learned as the unknown token "
                               "or not at all, since the tokenizer has no token for them: "
                               "save files of another encoding as UTF-8"});
  EXPECT_EQ(data.stats().text_bytes, static_cast<int64_t>(text.size()));
  EXPECT_EQ(data.stats().text_tokens, std::ssize(tokenizer_.encode(text, true)));
  // BOS leads the text, not each window; a last window of one token is left out.
  const Tokenizer llama3 = llama3_tokenizer();
  const Dataset with_bos = Dataset::read(write("b.txt", "\x01\x02\x03\x04"), llama3, options(4));
  ASSERT_EQ(llama3.encode("\x01\x02\x03\x04", true).size(), 4u);
  ASSERT_EQ(with_bos.size(), 1);
  EXPECT_EQ(with_bos.example(0).ids[0], llama3.bos());
  EXPECT_EQ(with_bos.stats().trained_tokens, 3);
}

TEST_F(DatasetTest, BytesWithoutATokenAreNoSingleBytes) {
  const auto warned = [&](const std::vector<uint8_t>& without) {
    TokenizerData tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.tokens.push_back(mapped_character(static_cast<uint8_t>(byte)));
    }
    for (const uint8_t byte : without) tokens.tokens[byte] = fmt::format("<spare {}>", byte);
    const Tokenizer tokenizer(tokens);
    DatasetOptions plain = options(16);
    plain.examples.format = chat_format("plain", tokens, {});
    const Dataset data = Dataset::read(write("a.txt", "an \xFF and a \xE9 ."), tokenizer, plain);
    return data_warnings(data.stats()).at(0);
  };
  const std::string utf8 = ": save files of another encoding as UTF-8";
  const std::string none =
      "as the unknown token or not at all, since the tokenizer has no token for them";
  EXPECT_EQ(warned({}), "2 bytes of text are not UTF-8 and learned as single bytes" + utf8);
  EXPECT_EQ(warned({0xFF}),
            "2 bytes of text are not UTF-8 and learned as single bytes, 1 of them " + none + utf8);
  EXPECT_EQ(warned({0xFF, 0xE9}), "2 bytes of text are not UTF-8 and learned " + none + utf8);
}

// As a text in UTF-16 has that does not begin with its mark.
TEST_F(DatasetTest, BytesThatAreZeroAreWarnedOf) {
  const auto warned = [&](const std::string& text) {
    return data_warnings(read("a.txt", text, options(16)).stats());
  };
  const std::string zero =
      " 0, as in UTF-16 and in files that are not text: save files of another encoding as UTF-8";
  EXPECT_EQ(warned(std::string("a\0b\0 \0c\0", 8)),
            std::vector<std::string>{"4 bytes of text are" + zero});
  EXPECT_EQ(warned(std::string("a text\0", 7)),
            std::vector<std::string>{"1 byte of text is" + zero});
  EXPECT_TRUE(warned("a text").empty());
  // JSON has another spelling of them.
  for (const char* line : {R"({"text": "a\u0000b"})", R"({"prompt": "a\u0000", "completion": "b"})",
                           R"({"prompt": "a", "completion": "\u0000b"})",
                           R"({"messages": [{"role": "user", "content": "a\u0000"}, )"
                           R"({"role": "assistant", "content": "b"}]})"}) {
    EXPECT_EQ(data_warnings(read("a.jsonl", line, options(100)).stats()),
              std::vector<std::string>{"1 byte of text is" + zero})
        << line;
  }
}

TEST_F(DatasetTest, AMarkOfByteOrderAloneIsABlankLine) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_EQ(read("a.jsonl", mark + "\n{\"text\": \"a\"}\n", options(16)).size(), 1);
  for (const char* name : {"a.jsonl", "a.csv"}) {
    const std::string error =
        error_of(ErrorKind::data, [&] { read(name, mark + "\n", options(16)); });
    EXPECT_TRUE(message_of(error).ends_with(std::string(name) + " has no record")) << error;
    EXPECT_TRUE(hint_of(error).starts_with("the file is empty; expected ")) << error;
  }
}

TEST_F(DatasetTest, RecordsUnderTheNameOfATextAreWarnedOf) {
  const auto warned = [&](const std::string& text) {
    return data_warnings(read("a.txt", text, options(16)).stats());
  };
  const std::vector<std::string> json_lines{
      "1 .txt file looks like JSON Lines and is read as plain text: name files of records .jsonl"};
  EXPECT_EQ(warned("{\"text\": \"one\"}\r\n{\"text\": \"two\"}\n"), json_lines);
  EXPECT_EQ(warned("{\"text\": \"one\"}"), json_lines);
  EXPECT_TRUE(warned("{a brace} and more\n{\"text\": \"two\"}\n").empty());
}

TEST_F(DatasetTest, OverlappingWindowsScoreEveryTokenOnce) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the cat sat ";
  const Ids ids = tokenizer_.encode(text, true);
  DatasetOptions overlapping = options(16);
  overlapping.stride = 6;
  const Dataset data = read("a.txt", text, overlapping);
  Ids scored;
  for (int64_t i = 0; i < data.size(); ++i) {
    const Example& example = data.example(i);
    const auto begin = 6 * i;
    EXPECT_TRUE(std::equal(example.ids.begin(), example.ids.end(), ids.begin() + begin));
    for (size_t t = 0; t < example.ids.size(); ++t) {
      if (example.train[t] != 0) scored.push_back(example.ids[t]);
    }
  }
  EXPECT_EQ(scored, ids);
  EXPECT_EQ(data.stats().trained_tokens, static_cast<int64_t>(ids.size()) - 1);
  overlapping.stride = 16;
  EXPECT_EQ(examples_of(read("a.txt", text, overlapping)).size(),
            examples_of(read("a.txt", text, options(16))).size());
  overlapping.stride = 17;
  expect_error(ErrorKind::usage, "stride 17 is more than the 16 tokens of a window",
               [&] { read("a.txt", text, overlapping); });
}

TEST_F(DatasetTest, TextRecordsGetBosAndEosOnce) {
  const Tokenizer llama3 = llama3_tokenizer();
  const Dataset data = Dataset::read(write("a.jsonl",
                                           "{\"text\": \"hello\"}\n"
                                           "{\"text\": \"<|begin_of_text|>hello<|im_end|>\"}\n"),
                                     llama3, options(100));
  EXPECT_EQ(data.example(0).ids, data.example(1).ids);
  EXPECT_EQ(llama3.decode(data.example(0).ids, false), "<|begin_of_text|>hello<|im_end|>");
  EXPECT_EQ(data.example(0).target_count(), static_cast<int64_t>(data.example(0).ids.size()) - 1);
}

// Llama 2's tokenizer puts a space before a text, which is no byte of it.
TEST_F(DatasetTest, CountsTheBytesOfTexts) {
  TokenizerData llama2 = golden_data("llama2");
  llama2.bos = 1;
  llama2.eos = 2;
  llama2.add_bos = true;
  const Tokenizer tokenizer(std::move(llama2));
  const auto bytes = [&](const std::string& name, const std::string& text, int64_t window) {
    return Dataset::read(write(name, text), tokenizer, options(window)).stats().trained_bytes;
  };
  EXPECT_EQ(bytes("a.jsonl", "{\"text\": \"Hi\"}\n{\"text\": \" Paris\"}\n", 100), 2 + 6);
  const std::string text = "A jack lifts and lifts what has been lifted";
  EXPECT_EQ(bytes("a.txt", text, 100), std::ssize(text));
  // The first token of a window is no target, its second no beginning of a text.
  const Ids ids = tokenizer.encode(text, true);
  ASSERT_GT(ids.size(), 8u);
  int64_t expected = std::ssize(text);
  for (size_t i = 3; i < ids.size(); i += 4) expected -= std::ssize(tokenizer.token_bytes(ids[i]));
  EXPECT_EQ(bytes("b.txt", text, 4), expected);
}

// A text has as many bytes with every tokenizer, whatever it spells; what is put around it has
// none.
TEST_F(DatasetTest, CountsTheBytesOfSpecialTokensThatATextSpells) {
  const auto bytes = [&](const std::string& name, const std::string& text) {
    return read(name, text, options(100)).stats().trained_bytes;
  };
  const std::string text = "Ask.<|im_start|>user: Hi<|im_end|> Bye";
  const Ids ids = tokenizer_.encode(text, true);
  EXPECT_EQ(std::ranges::count(ids, tokenizer_.eos()), 1);
  // The first token is predicted from nothing.
  const int64_t expected = std::ssize(text) - std::ssize(tokenizer_.token_bytes(ids.front()));
  EXPECT_EQ(bytes("a.txt", text), expected);
  EXPECT_EQ(bytes("a.jsonl", "{\"text\": \"" + text + "\"}"), expected);
  EXPECT_EQ(bytes("b.jsonl", R"({"prompt": "Ask.", "completion": "Hi"})"), 2);
}

// A text in parts is the text as one, wherever a line ends.
TEST_F(DatasetTest, TextIsReadInPartsThatDoNotShow) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += fmt::format("{}Line {},  {} \u00e9\u4e2d\n{}", i % 7 == 0 ? "  " : "", i, i * i,
                        i % 5 == 0 ? "\n" : "");
  }
  const Tokenizer llama3 = llama3_tokenizer();
  // GPT-2's pattern cuts two ends of lines apart where a letter follows, not where nothing does.
  TokenizerData data = tokenizer_.data();
  data.tokens.push_back("\u010A\u010A");
  data.kinds.push_back(TokenKind::normal);
  data.merges.emplace_back("\u010A", "\u010A");
  const Tokenizer with_pair(data);
  ASSERT_EQ(with_pair.encode("\n\n", true).size(), 1u);
  ASSERT_EQ(with_pair.encode("\n\na", true).size(), 3u);
  for (const Tokenizer* tokenizer : {&std::as_const(tokenizer_), &llama3, &with_pair}) {
    for (const size_t limit : {40u, 64u, 80u, 1000u}) {
      // Of fewer bytes not every part has a line with one end that another line follows.
      if (tokenizer == &with_pair && limit < 80) continue;
      Ids ids;
      std::string_view rest = text;
      bool begins = true;
      while (!rest.empty()) {
        const size_t size = first_part(rest, limit);
        ASSERT_TRUE(size > 0 && size <= limit);
        const Record part = DocumentRecord{rest.substr(0, size), begins, size == rest.size()};
        const Ids more = encode_record(*tokenizer, {}, part, "").ids;
        ids.insert(ids.end(), more.begin(), more.end());
        rest.remove_prefix(size);
        begins = false;
      }
      const Record whole = DocumentRecord{text};
      EXPECT_EQ(ids, encode_record(*tokenizer, {}, whole, "").ids) << limit;
    }
  }
  EXPECT_EQ(first_part("a\nb\n\nc", 5), 2u);
  EXPECT_EQ(first_part("a\nb \nc", 5), 2u);
  EXPECT_EQ(first_part("ab\n\ncd", 5), 4u);
  EXPECT_EQ(first_part("ab cd ef", 6), 5u);
  EXPECT_EQ(first_part("abcdefgh", 6), 6u);
  EXPECT_EQ(first_part("ab\u4e2d\u4e2d", 4), 2u);
  EXPECT_EQ(first_part(std::string(100, '\x80'), 50), 47u);
  EXPECT_EQ(first_part("abc", 6), 3u);
  // Tekken's pattern takes slashes after an end of line as well.
  EXPECT_EQ(first_part("a;\n//b\nc", 6), 6u);
  EXPECT_EQ(first_part("a\nb;\n//c\nd", 8), 2u);
  EXPECT_EQ(first_part("a\n\n/b c", 5), 5u);
}

// Whoever shows the beginning of a text reads no more than that, and goes on to the next.
TEST_F(DatasetTest, FirstPartsAreRecordsOfTheirOwn) {
  const std::vector<fs::path> files = {write("a.txt", std::string(size_t{17} << 20, 'a')),
                                       write("b.txt", "b")};
  for (const DocumentParts parts : {DocumentParts::all, DocumentParts::first}) {
    std::string seen;
    find_records(
        files, 2,
        [&](const FoundRecord& found) {
          const auto document = std::get<DocumentRecord>(found.parse({}).record);
          seen += fmt::format("{}{}{}{} ", document.text[0], document.begins ? " begins" : "",
                              document.ends ? " ends" : "", found.ends ? "," : "");
          return true;
        },
        {}, parts);
    EXPECT_EQ(seen, parts == DocumentParts::all ? "a begins a ends, b begins ends, "
                                                : "a begins, b begins ends, ");
  }
}

// What is too long to be written down for the fingerprint is the record's fault, and named.
TEST_F(DatasetTest, ToolsTooLongToBeCountedAreTheRecords) {
  const DatasetOptions o = options(8);
  DatasetBuilder builder(&tokenizer_, o);
  const jinja::Value long_text = jinja::Value::text(std::string(size_t{1} << 20, 'a'));
  ConversationRecord record{{{"user", "q"}}, jinja::Value::list(jinja::Values(65, long_text))};
  expect_error(ErrorKind::data, "a.jsonl:3: ", [&] { builder.count_text(record, "a.jsonl:3"); });
  EXPECT_EQ(builder.stats().text_bytes, 0);
  record.tools = jinja::None{};
  builder.count_text(record, "a.jsonl:4");
  EXPECT_EQ(builder.stats().text_bytes, 1);
}

// Windows do not depend on how the text came.
TEST_F(DatasetTest, WindowsOfATextInParts) {
  const Ids ids = tokenizer_.encode(std::string(500, 'x') + " and so on", true);
  for (const int64_t stride : {0, 3, 7}) {
    DatasetOptions o = options(8);
    o.stride = stride;
    std::vector<std::vector<Example>> results;
    for (const size_t part : {ids.size(), size_t{1}, size_t{7}, size_t{20}}) {
      DatasetBuilder builder(&tokenizer_, o);
      for (size_t begin = 0; begin < ids.size(); begin += part) {
        const size_t end = std::min(ids.size(), begin + part);
        Example example;
        example.ids.assign(ids.begin() + static_cast<ptrdiff_t>(begin),
                           ids.begin() + static_cast<ptrdiff_t>(end));
        builder.add_text(example);
      }
      builder.end_text();
      results.push_back(examples_of(builder.finish("")));
    }
    for (const auto& result : results) {
      ASSERT_EQ(result.size(), results[0].size());
      for (size_t i = 0; i < result.size(); ++i) {
        EXPECT_EQ(result[i].ids, results[0][i].ids);
        EXPECT_EQ(result[i].train, results[0][i].train);
      }
    }
  }
}

}  // namespace
}  // namespace jackscrew
