// Files of tokens that stand for the data they were made of.
#include "data/token_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <fstream>

#include "base/crc32c.h"
#include "tests/data/dataset_fixture.h"

namespace jackscrew {
namespace {

class TokenFileTest : public DatasetTest {
 protected:
  // What the program would read of data.jsonl, and whether it was read of the file of tokens: then
  // nobody tells of progress.
  std::pair<Dataset, bool> read_kept(const DatasetOptions& wanted) {
    DatasetOptions o = wanted;
    o.token_file = kept_;
    int64_t told = 0;
    Dataset data =
        Dataset::read(data_, tokenizer_, o, DataPart::train, [&](int64_t bytes) { told += bytes; });
    return {std::move(data), told == 0};
  }
  void write_data(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += fmt::format("{{\"prompt\": \"Q {}\", \"completion\": \"A {}\"}}\n", i, i * i);
    }
    write("data.jsonl", text);
  }

  fs::path data_ = directory_ / "data.jsonl";
  fs::path kept_ = directory_ / "kept.tokens";
};

void expect_same(const Dataset& a, const Dataset& b) {
  EXPECT_TRUE(a.stats() == b.stats());
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  ASSERT_EQ(a.size(), b.size());
  for (int64_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a.example(i).ids, b.example(i).ids);
    EXPECT_EQ(a.example(i).train, b.example(i).train);
  }
}

TEST_F(TokenFileTest, HoldsWhatWasRead) {
  for (const int count : {2, 3, 50}) {
    write_data(count);
    const Dataset plain = Dataset::read(data_, tokenizer_, options(100));
    for (const bool again : {false, true}) {
      const auto [data, from_file] = read_kept(options(100));
      EXPECT_EQ(from_file, again);
      expect_same(data, plain);
      // Of odd and even numbers of tokens: what follows them in the file is aligned.
      expect_same(data.split(0.5, 1).first.weighted(std::vector<double>{1}, 1),
                  plain.split(0.5, 1).first.weighted(std::vector<double>{1}, 1));
    }
    fs::remove(kept_);
  }
}

// Whoever ends the process while it reads, or later, leaves nothing.
TEST_F(TokenFileTest, ThatIsNotKeptHasNoName) {
  write_data(50);
  const Dataset plain = Dataset::read(data_, tokenizer_, options(100));
  const fs::path place = directory_ / "temporary";
  fs::create_directories(place);
  DatasetOptions o = options(100);
  o.token_file = place / "some.tokens";
  o.keep_token_file = false;
  int times = 0;
  const Dataset data = Dataset::read(data_, tokenizer_, o, DataPart::train, [&](int64_t) {
    EXPECT_TRUE(fs::is_empty(place));
    ++times;
  });
  EXPECT_GT(times, 0);
  EXPECT_TRUE(fs::is_empty(place));
  expect_same(data, plain);
}

TEST_F(TokenFileTest, OfOtherDataOrOptionsIsNotUsed) {
  write_data(20);
  read_kept(options(100));
  EXPECT_TRUE(read_kept(options(100)).second);
  std::vector<DatasetOptions> others = {options(99), options(100, "plain"), options(100),
                                        options(100), options(100)};
  others[2].max_samples = 3;
  others[3].long_record = LongRecord::drop;
  others[4].examples.train_on_inputs = true;
  for (const DatasetOptions& other : others) {
    EXPECT_FALSE(read_kept(other).second);
    expect_same(read_kept(other).first, Dataset::read(data_, tokenizer_, other));
  }
  read_kept(options(100));
  write_data(21);
  EXPECT_FALSE(read_kept(options(100)).second);
  EXPECT_EQ(read_kept(options(100)).first.size(), 21);
}

// Another library may cut the same text otherwise.
TEST_F(TokenFileTest, IsOfTheTablesOfUnicodeThatMadeIt) {
  write_data(2);
  read_kept(options(100));
  const auto file = TokenFile::open(kept_, tokenizer_.vocab_size());
  ASSERT_TRUE(file.has_value());
  // In a text within JSON.
  const std::string versions = fmt::format(R"(\"unicode\":[\"{}\",\"{}\"])",
                                           pattern_unicode_version(), nfc_unicode_version());
  EXPECT_NE(file->trailer.find(versions), std::string::npos) << file->trailer;
}

TEST_F(TokenFileTest, OfAnotherSpecialTokenIsNotUsed) {
  write_data(4);
  using Role = int32_t TokenizerData::*;
  for (const Role role :
       {&TokenizerData::bos, &TokenizerData::eos, &TokenizerData::pad, &TokenizerData::unk}) {
    read_kept(options(100, "plain"));
    TokenizerData data = tokenizer_.data();
    data.*role = data.*role == 2 ? 1 : 2;
    tokenizer_ = Tokenizer(data);
    EXPECT_FALSE(read_kept(options(100, "plain")).second);
    expect_same(read_kept(options(100, "plain")).first,
                Dataset::read(data_, tokenizer_, options(100, "plain")));
  }
  // Other names count where the template mentions them.
  TokenizerData data = tokenizer_.data();
  data.chat_template =
      "{{ sep_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
  const auto is_kept = [&](const char* name) {
    tokenizer_ = Tokenizer(data);
    DatasetOptions o = options(100);
    o.examples.format = chat_format(name, data, {});
    return read_kept(o).second;
  };
  for (const bool mentioned : {false, true}) {
    const char* const name = mentioned ? "auto" : "plain";
    is_kept(name);
    data.named_tokens["sep_token"] = mentioned ? 2 : 1;
    EXPECT_EQ(is_kept(name), !mentioned);
    EXPECT_TRUE(is_kept(name));
  }
}

TEST_F(TokenFileTest, OfAnotherDayIsUsedUnlessTheTemplateAsksForIt) {
  write_data(4);
  TokenizerData dated = tokenizer_.data();
  dated.chat_template =
      "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
  for (const char* name : {"chatml", "plain", "auto"}) {
    SCOPED_TRACE(name);
    DatasetOptions o = options(100);
    o.examples.format = chat_format(name, dated, {.year = 2025, .month = 3, .day = 31});
    read_kept(o);
    o.examples.format = chat_format(name, dated, {.year = 2025, .month = 4, .day = 1});
    EXPECT_EQ(read_kept(o).second, std::string(name) != "auto");
  }
}

// What the plain format made stands for nothing that the model's own template would make.
TEST_F(TokenFileTest, OfTheTemplateThatIsRefusedIsNotUsed) {
  write_data(4);
  TokenizerData own = tokenizer_.data();
  own.chat_template = "{% include 'other' %}";
  const auto with = [&](const char* name) {
    DatasetOptions o = options(100);
    o.examples.format = chat_format(name, own, {});
    return o;
  };
  read_kept(with("plain"));
  EXPECT_TRUE(read_kept(with("plain")).second);
  expect_error(ErrorKind::model, "the model's", [&] { read_kept(with("auto")); });
}

// A run that goes on is warned as the one before it.
TEST_F(TokenFileTest, KnowsWhichFieldsWereNotThere) {
  write_data(4);
  DatasetOptions o = options(100);
  o.examples.fields = {.instruction = "prompt", .output = "completion", .system = "sistem"};
  for (const bool again : {false, true}) {
    const auto [data, from_file] = read_kept(o);
    EXPECT_EQ(from_file, again);
    EXPECT_EQ(
        data_warnings(data.stats()),
        std::vector<std::string>{"field_system=sistem names a key that no record has: what is "
                                 "meant is not read"});
  }
  // It is enough that one of several data sets has it.
  write("data.jsonl", R"({"prompt": "Q", "completion": "A", "sistem": null})");
  const Dataset parts[] = {read_kept(o).first, read("other.jsonl", R"({"text": "t"})", o),
                           read("other.txt", "t t", o)};
  EXPECT_TRUE(data_warnings(Dataset::join(parts).stats()).empty());
  EXPECT_EQ(data_warnings(parts[1].stats()).size(), 3u);
  EXPECT_TRUE(data_warnings(parts[2].stats()).empty());
}

TEST_F(TokenFileTest, TellsOfTextsThatAreNotRead) {
  write("data.jsonl", R"({"prompt": "Q", "completion": "A", "input": "i"})");
  for (const bool again : {false, true}) {
    const auto [data, from_file] = read_kept(options(100));
    EXPECT_EQ(from_file, again);
    EXPECT_EQ(
        data_warnings(data.stats()),
        std::vector<std::string>{"1 record has input, which is not read; field_instruction=prompt "
                                 "field_output=completion reads it"});
  }
}

TEST_F(TokenFileTest, IsKnownFromFilesOfOthers) {
  write_data(3);
  read_kept(options(100));
  EXPECT_TRUE(is_token_file(kept_));
  EXPECT_TRUE(is_token_file(write("half.tokens.jackscrew-part", "half")));
  EXPECT_FALSE(is_token_file(write("other.tokens", read_text(kept_) + "more")));
  EXPECT_FALSE(is_token_file(write("empty.tokens", "")));
  EXPECT_FALSE(is_token_file(directory_));
}

TEST_F(TokenFileTest, DamagedIsWrittenAgain) {
  write_data(6);
  const Dataset plain = read_kept(options(100)).first;
  const std::string good = read_text(kept_);
  // `plain` still has the good file mapped.
  const auto replace = [&](const std::string& bytes) {
    fs::remove(kept_);
    write("kept.tokens", bytes);
  };
  for (size_t size = 0; size < good.size(); size += size + 80 < good.size() ? 61 : 5) {
    replace(good.substr(0, size));
    EXPECT_FALSE(read_kept(options(100)).second) << size;
  }
  for (size_t at = 0; at < good.size(); at += 3) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x01);  // of a token, its neighbour in the vocabulary
    replace(bad);
    const auto [data, from_file] = read_kept(options(100));
    EXPECT_FALSE(from_file) << at;
    expect_same(data, plain);
  }
  EXPECT_EQ(read_text(kept_), good);
  // With a checksum that fits, the outcome is the same data, other tokens of the vocabulary, or an
  // error; never anything beyond the file.
  const size_t kFooterBytes = 40, kChecksumFromEnd = 16;
  for (size_t at = 0; at < good.size(); at += 3) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x41);
    const uint64_t crc = crc32c(std::string_view(bad).substr(0, bad.size() - kFooterBytes));
    std::memcpy(&bad[bad.size() - kChecksumFromEnd], &crc, sizeof crc);
    replace(bad);
    try {
      const Dataset data = read_kept(options(100)).first;
      for (const Example& example : examples_of(data)) {
        for (const int32_t id : example.ids) tokenizer_.token_bytes(id);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data) << error.what();
    }
  }
}

TEST_F(TokenFileTest, CannotReplaceADirectory) {
  fs::create_directory(kept_);
  TokenWriter writer(2, kept_);
  writer.add({.ids = {0, 1}, .train = {0, 1}}, 1);
  expect_error(ErrorKind::generic, "cannot rename to " + kept_.string(),
               [&] { writer.finish({}); });
}

// Another run is at work under the old name of its directory.
TEST_F(TokenFileTest, StaysInItsDirectoryWhereThatIsMoved) {
  const fs::path from = directory_ / "from", to = directory_ / "to";
  for (const bool finished : {true, false}) {
    SCOPED_TRACE(finished);
    fs::create_directories(from);
    {
      TokenWriter writer(2, from / "kept.tokens");
      writer.add({.ids = {0, 1}, .train = {0, 1}}, 1);
      fs::rename(from, to);
      fs::create_directories(from);
      write("from/kept.tokens.jackscrew-part", "another's");
      if (finished) {
        EXPECT_EQ(writer.finish({})->example(0).ids, (std::vector<int32_t>{0, 1}));
      }
    }
    EXPECT_EQ(read_text(from / "kept.tokens.jackscrew-part"), "another's");
    EXPECT_FALSE(fs::exists(from / "kept.tokens"));
    EXPECT_EQ(fs::exists(to / "kept.tokens"), finished);
    EXPECT_FALSE(fs::exists(to / "kept.tokens.jackscrew-part"));
    fs::remove_all(from);
    fs::remove_all(to);
  }
}

TEST_F(TokenFileTest, IsNotMadeOfDataThatAreChangedMeanwhile) {
  for (const char* name : {"data.jsonl", "data.txt"}) {
    const fs::path data = write(name, "{\"text\": \"some words\"}\n");
    fs::last_write_time(data, fs::last_write_time(data) - std::chrono::hours(1));
    DatasetOptions o = options(100);
    o.token_file = kept_;
    const auto change = [&](int64_t) {
      std::fstream file(data, std::ios::binary | std::ios::in | std::ios::out);
      file << "{\"text\": \"more words\"}\n";
    };
    expect_error(ErrorKind::data, std::string(name) + ": the file was changed while it was read",
                 [&] { Dataset::read(data, tokenizer_, o, DataPart::train, change); });
    EXPECT_FALSE(fs::exists(kept_));
  }
}

TEST_F(TokenFileTest, ChangedWhileItIsUsedGivesNoIdBeyondTheVocabulary) {
  write_data(6);
  const Dataset data = read_kept(options(100)).first;
  int64_t tokens = 0;
  for (const Example& example : examples_of(data)) tokens += std::ssize(example.ids);
  std::fstream file(kept_, std::ios::binary | std::ios::in | std::ios::out);
  file << std::string(static_cast<size_t>(tokens) * sizeof(uint32_t), '\x01');
  file.close();
  expect_error(ErrorKind::data, "is damaged", [&] { static_cast<void>(data.example(0)); });
}

}  // namespace
}  // namespace jackscrew
