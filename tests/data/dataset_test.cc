#include "data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "data/dataset_builder.h"
#include "tests/data/dataset_fixture.h"

namespace jackscrew {
namespace {

using Ids = std::vector<int32_t>;

std::string trained_text(const Tokenizer& tokenizer, const Example& example) {
  std::string text;
  for (size_t i = 0; i < example.ids.size(); ++i) {
    if (example.train[i] != 0) text += tokenizer.token_bytes(example.ids[i]);
  }
  return text;
}

TEST_F(DatasetTest, EveryKindOfRecord) {
  const std::string text =
      R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A1"}]})"
      "\n"
      R"({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A2"}]})"
      "\r\n"
      "\n"
      R"({"instruction": "Q", "input": "I", "output": "A3"})"
      "\n"
      R"({"prompt": "Q", "completion": "A4"})"
      "\n"
      R"({"text": "A5"})"
      "\n"
      R"({"instruction": "Q", "input": null, "system": "S", "output": "A6"})";
  const std::string q = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n";
  const Dataset chatml = read("a.jsonl", text, options(1000));
  ASSERT_EQ(chatml.size(), 6);
  const std::string expected[] = {
      q + "A1<|im_end|>\n",
      q + "A2<|im_end|>\n",
      "<|im_start|>user\nQ\n\nI<|im_end|>\n<|im_start|>assistant\nA3<|im_end|>\n",
      q + "A4<|im_end|>\n",
      "A5<|im_end|>",
      "<|im_start|>system\nS<|im_end|>\n" + q + "A6<|im_end|>\n"};
  for (int i = 0; i < 6; ++i) {
    const Example example = chatml.example(i);
    EXPECT_EQ(decode(example), expected[i]);
    EXPECT_EQ(trained_text(tokenizer_, example), fmt::format("A{}<|im_end|>", i + 1));
    EXPECT_EQ(example.train.size(), example.ids.size());
  }
  const Dataset plain = read("a.jsonl", text, options(1000, "plain"));
  const std::string plainly[] = {"Q\n\nA1<|im_end|>",      "Q\n\nA2<|im_end|>",
                                 "Q\n\nI\n\nA3<|im_end|>", "QA4<|im_end|>",
                                 "A5<|im_end|>",           "S\n\nQ\n\nA6<|im_end|>"};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(decode(plain.example(i)), plainly[i]);
    EXPECT_EQ(trained_text(tokenizer_, plain.example(i)), fmt::format("A{}<|im_end|>", i + 1));
  }
  DatasetOptions all = options(1000);
  all.examples.train_on_inputs = true;
  const Dataset inputs = read("a.jsonl", text, all);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(inputs.example(i).ids, chatml.example(i).ids);
    EXPECT_EQ(inputs.example(i).target_count(),
              static_cast<int64_t>(inputs.example(i).ids.size()) - 1);
  }
  EXPECT_EQ(chatml.stats().records, 6);
  EXPECT_EQ(chatml.stats().trained_bytes, 12 - 1);  // A5's first byte is predicted from nothing
}

TEST_F(DatasetTest, JsonArrayAndMessageWeights) {
  const Dataset data = read("a.json", R"([{"messages": [
      {"role": "user", "content": "Q"}, {"role": "assistant", "content": "no", "weight": 0},
      {"role": "user", "content": "Q"}, {"role": "assistant", "content": "no", "train": false},
      {"role": "user", "content": "Q"}, {"role": "assistant", "content": "yes", "weight": 1}]}])",
                            options(1000));
  EXPECT_EQ(trained_text(tokenizer_, data.example(0)), "yes<|im_end|>");
}

TEST_F(DatasetTest, TruncatesDropsAndCounts) {
  const std::string text =
      R"({"prompt": "short", "completion": "ok"})"
      "\n"
      R"({"prompt": "short", "completion": "a long answer that goes on and on and on"})"
      "\n"
      R"({"prompt": "a long question that goes on and on and on and on", "completion": "x"})"
      "\n"
      R"({"messages": [{"role": "user", "content": "no answer"}]})"
      "\n"
      R"({"text": ""})"
      "\n";
  const Dataset data = read("a.jsonl", text, options(24));
  EXPECT_EQ(data.stats().records, 5);
  EXPECT_EQ(data.stats().examples, 2);
  EXPECT_EQ(data.stats().truncated, 2);
  EXPECT_EQ(data.stats().dropped, 3);
  EXPECT_EQ(data.example(1).ids.size(), 24u);
  EXPECT_EQ(data.stats().tokens,
            static_cast<int64_t>(data.example(0).ids.size() + data.example(1).ids.size()));
  EXPECT_EQ(data.stats().trained_tokens,
            data.example(0).target_count() + data.example(1).target_count());
  EXPECT_EQ(
      data_warnings(data.stats())[0],
      "2 of 5 records are longer than sequence_len and cut: the end of the text or the answer "
      "is lost; the longest has " +
          std::to_string(data.stats().longest) + " tokens");
  expect_error(ErrorKind::data, "raise sequence_len", [&] { read("a.jsonl", text, options(4)); });
  expect_error(ErrorKind::usage, "sequence_len 1", [&] { read("a.jsonl", text, options(1)); });
}

TEST_F(DatasetTest, LongRecordsAreCutLeftOutOrRefused) {
  const std::string text =
      "{\"text\": \"short\"}\n"
      "{\"text\": \"one two three four five six seven eight nine ten eleven twelve\"}\n";
  DatasetOptions o = options(8);
  const DatasetStats cut = read("a.jsonl", text, o).stats();
  EXPECT_EQ(cut.truncated, 1);
  const int64_t longest = read("a.jsonl", text, options(100)).length(1);
  EXPECT_EQ(cut.longest, longest);
  // Said of many, and not of few.
  const auto warnings = data_warnings(cut);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with("1 of 2 records is longer than sequence_len")) << warnings[0];
  EXPECT_TRUE(warnings[0].ends_with(fmt::format("has {} tokens", longest))) << warnings[0];
  EXPECT_EQ(data_warnings(cut, TargetUse::scored), warnings);
  EXPECT_TRUE(data_warnings(cut, TargetUse::none).empty());
  DatasetStats few = cut;
  few.records = 21;
  EXPECT_TRUE(data_warnings(few).empty());
  // Where a soft prompt stands before it, a text has the rest.
  o.after_virtual = true;
  const auto beside = data_warnings(read("a.jsonl", text, o).stats());
  ASSERT_EQ(beside.size(), 1u);
  EXPECT_TRUE(
      beside[0].starts_with("1 of 2 records is longer than the 8 tokens that virtual ones "
                            "leave of sequence_len and cut: "))
      << beside[0];
  o.long_record = LongRecord::error;
  expect_error(ErrorKind::data, "what virtual ones leave of sequence_len is 8",
               [&] { read("a.jsonl", text, o); });
  o.after_virtual = false;
  o.long_record = LongRecord::drop;
  const Dataset dropped = read("a.jsonl", text, o);
  EXPECT_EQ(dropped.size(), 1);
  EXPECT_EQ(dropped.stats().too_long, 1);
  EXPECT_EQ(dropped.stats().dropped, 0);
  // Of all records: what a byte of text comes to in tokens does not depend on what is skipped.
  EXPECT_EQ(dropped.stats().text_bytes, cut.text_bytes);
  EXPECT_EQ(dropped.stats().text_tokens, cut.text_tokens);
  o.long_record = LongRecord::error;
  expect_error(ErrorKind::data, "a.jsonl:2: ", [&] { read("a.jsonl", text, o); });
  expect_error(ErrorKind::data, "sequence_len is 8", [&] { read("a.jsonl", text, o); });
  // The windows of a text are never longer.
  EXPECT_GT(read("a.txt", text, o).size(), 2);
}

TEST_F(DatasetTest, AsManyRecordsAsAreWanted) {
  write("a.jsonl", R"({"text": "one"})"
                   "\n"
                   R"({"text": "two"})"
                   "\n");
  write("b.json", R"([{"text": "three"}, {"text": "four"}])");
  write("c.csv", "text\nfive\nsix\n");
  for (int64_t count = 1; count <= 6; ++count) {
    DatasetOptions o = options(100);
    o.max_samples = count;
    EXPECT_EQ(Dataset::read(directory_, tokenizer_, o).stats().records, count);
  }
}

// What is not read is not looked at.
TEST_F(DatasetTest, NothingIsReadBeyondTheRecordsWanted) {
  DatasetOptions o = options(100);
  o.max_samples = 1;
  EXPECT_EQ(read("a.jsonl", "{\"text\": \"one\"}\nnonsense\n", o).size(), 1);
  EXPECT_EQ(read("a.json", "[{\"text\": \"one\"}, nonsense", o).size(), 1);
}

TEST_F(DatasetTest, AByteOrderMarkIsNoText) {
  for (const std::string text : {"", "\xEF\xBB\xBF"}) {
    const Dataset data = read("a.txt", text + "one two", options(100));
    EXPECT_EQ(decode(data.example(0)), "one two");
  }
}

TEST_F(DatasetTest, JsonArraysElementByElement) {
  const Dataset data =
      read("a.json",
           "\xEF\xBB\xBF [ {\"text\": \"a, ] } \\\" \\\\\", \"x\": [1, {\"y\": []}]} ,\n"
           "{\"text\": \"b\"}\t]\r\n",
           options(100));
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(decode(data.example(0)), "a, ] } \" \\<|im_end|>");
  refuse("a.json", "[]", "a.json has no record | the file has an array without an element");
  refuse("a.json", R"([{"text": "a"}, {"text": "b"})",
         "record 2: not valid JSON: the array is not");
  refuse("a.json", R"([{"text": "a"} {"text": "b"}])", "a.json, record 1: not valid JSON");
  refuse("a.json", R"([{"text": "a"},])", "a.json, record 2: not valid JSON");
  refuse("a.json", R"([{"text": "a"}}])", "a.json, record 1: not valid JSON");
  refuse("a.json", R"([{"text": "a"}] x)", "something follows the array");
  refuse("a.json", "[", "record 1: not valid JSON: the array is not closed");
  refuse("a.json", "[" + std::string(100000, '['), "record 1: not valid JSON");
}

TEST_F(DatasetTest, AJsonFileMayHoldAnObjectALine) {
  const Dataset data =
      read("a.json", "\xEF\xBB\xBF{\"text\": \"a }\", \"x\": {\"y\": []}}\r\n{\"text\": \"b\"}\n",
           options(100));
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(decode(data.example(0)), "a }<|im_end|>");
  refuse("a.json", "{\"text\": \"a\"}\n{\"text\": 3}\n", "a.json:2: \"text\" is number");
  EXPECT_EQ(read("a.json", "{\"text\": \"a\"}\n\n", options(100)).size(), 1);
  for (const char* one : {"{\"text\": \"a\"", "{\n\"text\":\n\"a\"}"}) {
    refuse("a.json", one, "an array of records was expected");
  }
}

TEST_F(DatasetTest, WeightsSayHowOftenExamplesAreSeen) {
  std::vector<Example> a, b;
  for (int i = 0; i < 10; ++i) {
    a.push_back({{1, 10 + i}, {1, 1}});
    b.push_back({{2, 30 + i, 3}, {1, 1, 1}});
  }
  const Dataset both = Dataset::join(std::vector<Dataset>{Dataset(a, 8), Dataset(b, 8)});
  EXPECT_EQ(both.size(), 20);
  EXPECT_EQ(both.stats().tokens, 50);
  const auto times = [&](std::vector<double> weights, uint64_t seed) {
    const Dataset drawn = both.weighted(weights, seed);
    EXPECT_EQ(drawn.stats().examples, drawn.size());
    std::map<int32_t, int> counts;
    int64_t tokens = 0;
    for (const Example& example : examples_of(drawn)) {
      ++counts[example.ids[1]];
      tokens += std::ssize(example.ids);
    }
    EXPECT_EQ(drawn.stats().tokens, tokens);
    return counts;
  };
  const std::map<int32_t, int> twice = times({2, 0}, 1);
  EXPECT_EQ(twice.size(), 10u);
  for (const auto& [id, count] : twice) EXPECT_TRUE(id < 30 && count == 2);
  const std::map<int32_t, int> mixed = times({0.3, 1.5}, 1);
  int of_a = 0;
  int of_b = 0;
  for (const auto& [id, count] : mixed) (id < 30 ? of_a : of_b) += count;
  EXPECT_EQ(of_a, 3);
  EXPECT_EQ(of_b, 15);
  EXPECT_EQ(mixed, times({0.3, 1.5}, 1));
  EXPECT_NE(mixed, times({0.3, 1.5}, 2));
  EXPECT_EQ(times({1, 1}, 1).size(), 20u);
  EXPECT_EQ(times({1, 0.01}, 1).size(), 11u);  // at least one
  const std::vector<double> none = {0, 0};
  expect_error(ErrorKind::usage, "nothing to train on", [&] { (void)both.weighted(none, 1); });
  const std::vector<double> one = {1};
  expect_error(ErrorKind::usage, "1 weights for 2", [&] { (void)both.weighted(one, 1); });
}

TEST_F(DatasetTest, ErrorsNameTheLine) {
  const std::string good = R"({"text": "fine"})"
                           "\n\n";
  refuse("a.jsonl", good + "{\"text\": \n", "a.jsonl:3: not valid JSON");
  refuse("a.jsonl", good + "{\"text\": \"\xFF\"}\n", "a.jsonl:3: not valid JSON");
  refuse("a.jsonl", good + "{\"text\": \"\\ud800\"}\n", "a.jsonl:3: not valid JSON");
  refuse("a.jsonl", good + std::string(100000, '['), "a.jsonl:3: JSON nested more");
  refuse("a.jsonl", good + "[1]\n", "a.jsonl:3: an object was expected, found array");
  refuse("a.jsonl", good + R"({"text": 3})", "a.jsonl:3: \"text\" is number, expected text");
  refuse("a.jsonl", good + R"({"txt": "a"})", "a.jsonl:3: nothing to train on: its key is txt");
  refuse("a.jsonl", good + R"({"prompt": "a"})", "a.jsonl:3: \"completion\" is missing");
  refuse("a.jsonl", good + R"({"instruction": "a"})", "\"output\" is missing");
  refuse("a.jsonl", good + R"({"messages": []})", "\"messages\" holds no message");
  refuse("a.jsonl", R"({"messages": [{"role": "asistant", "content": "a"}]})",
         "a.jsonl:1, message 1: unknown role \"asistant\" | did you mean \"assistant\"?");
  refuse("a.jsonl", R"({"messages": [{"role": "user", "content": null}]})", "\"content\" is null");
  refuse("a.jsonl", R"({"messages": [{"role": "user", "content": "a", "weight": 2}]})",
         "\"weight\"");
  refuse("a.jsonl", "", "a.jsonl has no record | the file is empty");
  refuse("a.json", R"([{"text": "fine"}, {"text": null}])", "a.json, record 2: \"text\" is null");
  refuse("a.json", "{\"text\":\n \"fine\"}", "an array of records was expected");
  refuse("a.parquet", "text\nfine\n", "unknown kind of data file");
  expect_error(ErrorKind::data, "does not exist",
               [&] { Dataset::read(directory_ / "missing.jsonl", tokenizer_, options(10)); });
}

// So deep that a walk which calls itself would leave the stack.
TEST_F(DatasetTest, DeepRecordsAreRefused) {
  constexpr size_t kDepth = 200000;
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  const std::string turns = R"({"role": "user", "content": "a"}, {"role": "assistant", )";
  const std::string call = turns + R"("tool_calls": [{"function": {"name": "f", "arguments": )";
  for (const std::string& record :
       {R"({"text": "a", "other": )" + deep + "}",
        R"({"messages": [)" + turns + R"("content": "b"}], "tools": )" + deep + "}",
        R"({"messages": [)" + turns + R"("content": "b"}], "tools": ")" + deep + "\"}",
        R"({"messages": [)" + call + deep + "}}]}]}",
        R"({"messages": [)" + call + "\"" + deep + "\"}}]}]}"}) {
    refuse("deep.jsonl", record + "\n", "deep.jsonl:1");
    refuse("deep.jsonl", record + "\n", "JSON nested more than 100 deep");
    refuse("deep.json", "[" + record + "]", "JSON nested more than 100 deep");
  }
}

// Together they are the file, whatever its records hold: blank lines, tokens that are special,
// bytes that are not UTF-8.
TEST_F(DatasetTest, ProgressIsToldOfEveryByte) {
  const std::string record = R"({"text": "some words"})";
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.jsonl", record + "\n\n" + record + "\r\n" + record},
      {"b.json", "[" + record + ", " + record + ",\n" + record + "]"},
      {"c.txt", "<|im_start|>one two\xFF\xFE three<|im_end|>\n\xC3"},
      {"d.jsonl", record + "\n"}};
  for (const auto& [name, text] : files) {
    std::vector<int64_t> told;
    const auto listen = [&](int64_t amount) { told.push_back(amount); };
    Dataset::read(write(name, text), tokenizer_, options(100), DataPart::train, listen);
    EXPECT_EQ(std::accumulate(told.begin(), told.end(), int64_t{0}),
              static_cast<int64_t>(text.size()))
        << name;
    EXPECT_GT(*std::min_element(told.begin(), told.end()), 0) << name;
    EXPECT_EQ(told.size() > 2, name[0] < 'c') << name;
  }
}

// More text than the threads take at a time, of every kind.
class ReadByThreads : public DatasetTest {
 protected:
  ReadByThreads() {
    std::string lines, array, rows = "prompt,completion\n";
    for (int i = 0; i < kRecords; ++i) {
      const std::string words = std::string(static_cast<size_t>(i % 97), 'a') + " jack lifts";
      lines += fmt::format(R"({{"instruction": "{} {}", "output": "{}"}})", i, words, i) + "\n";
      array += fmt::format(R"({}{{"text": "{} {}"}})", i == 0 ? "[" : ",", words, i);
      rows += fmt::format("{},{}\n", words, i);
    }
    write("a.jsonl", lines);
    write("b.json", array + "]");
    write("c.csv", rows);
    write("d.txt", rows + lines);
  }
  Dataset read_all(int threads) {
    DatasetOptions o = options(100);
    o.threads = threads;
    return Dataset::read(directory_, tokenizer_, o);
  }

  static constexpr int kRecords = 4000;
};

TEST_F(ReadByThreads, IsTheSameForAnyNumber) {
  const Dataset one = read_all(1);
  EXPECT_EQ(one.stats().records, 3 * kRecords + 1);
  for (const int threads : {2, 3, 8}) {
    const Dataset more = read_all(threads);
    EXPECT_EQ(more.stats(), one.stats());
    EXPECT_EQ(more.fingerprint(), one.fingerprint());
    ASSERT_EQ(more.size(), one.size());
    for (int64_t i = 0; i < one.size(); ++i) {
      const Example a = one.example(i), b = more.example(i);
      ASSERT_TRUE(a.ids == b.ids && a.train == b.train) << i;
    }
  }
}

// Whoever comes upon it first, and where a reader ends before it has been looked at.
TEST_F(ReadByThreads, RefusalsNameTheFirst) {
  const std::string good = R"({"text": "fine"})";
  std::string lines, array = "[";
  for (int i = 1; i <= kRecords; ++i) {
    const bool bad = i == 300 || i == 301 || i == 1500 || i == kRecords;
    lines += (bad ? std::string("{}") : good) + "\n";
    array += (bad ? std::string("{}") : good) + ",";
  }
  for (const int threads : {1, 8}) {
    DatasetOptions o = options(100);
    o.threads = threads;
    expect_error(ErrorKind::data, "bad.jsonl:300: nothing to train on",
                 [&] { read("bad.jsonl", lines, o); });
    expect_error(ErrorKind::data, "open.json, record 300: nothing to train on",
                 [&] { read("open.json", array, o); });
    expect_error(ErrorKind::data, "few.json, record 3: not valid JSON: the array is not closed",
                 [&] { read("few.json", "[" + good + "," + good + "," + good, o); });
  }
}

TEST(DatasetSplit, IsAPartitionThatDependsOnTheSeedAlone) {
  std::vector<Example> examples;
  for (int32_t i = 0; i < 100; ++i) examples.push_back({{i, i, i}, {0, 1, 1}});
  const Dataset all(examples, 10);
  for (const double val_size : {0.2, 20.0}) {
    const auto [rest, held] = all.split(val_size, 7);
    EXPECT_EQ(held.size(), 20);
    EXPECT_EQ(rest.size(), 80);
    std::set<int32_t> ids;
    for (const Dataset* part : {&rest, &held}) {
      EXPECT_EQ(part->stats().trained_tokens, 2 * part->size());
      EXPECT_EQ(part->stats().tokens, 3 * part->size());
      EXPECT_EQ(part->stats().records, part->size());
      for (const Example& example : examples_of(*part)) ids.insert(example.ids[0]);
    }
    EXPECT_EQ(ids.size(), 100u);
    EXPECT_EQ(all.split(val_size, 7).second.example(3).ids, held.example(3).ids);
  }
  const auto first = [&](uint64_t seed) {
    Ids ids;
    const Dataset held = all.split(20, seed).second;
    for (const Example& example : examples_of(held)) ids.push_back(example.ids[0]);
    return ids;
  };
  EXPECT_NE(first(1), first(2));
  const auto held_out = [&](double val_size, uint64_t seed) {
    return all.split(val_size, seed).second.fingerprint();
  };
  EXPECT_EQ(held_out(0.2, 1), held_out(20, 1));
  EXPECT_NE(held_out(20, 1), held_out(20, 2));
  EXPECT_NE(held_out(20, 1), held_out(21, 1));
  EXPECT_EQ(all.split(20, 1).first.fingerprint(), all.fingerprint());
  EXPECT_EQ(all.split(0.0001, 1).second.size(), 1);
  for (const double bad : {0.0, -1.0, 100.0, 0.999, std::nan("")}) {
    expect_error(ErrorKind::usage, "val_size", [&] { all.split(bad, 1); });
  }
}

TEST_F(DatasetTest, TellsWhatTheTemplateDoesToConversations) {
  const std::string text =
      R"({"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"},)"
      R"( {"role": "user", "content": "Q2"}, {"role": "assistant", "content": "A2"}]})";
  const auto with_template = [&](const std::string& source) {
    TokenizerData data = tokenizer_.data();
    data.chat_template = source;
    DatasetOptions out = options(1000);
    out.examples.format = chat_format("auto", data, {});
    return out;
  };
  // Earlier answers are changed, and none has an end token.
  const Dataset rewritten =
      read("a.jsonl", text + "\n" + text,
           with_template("{% for m in messages %}{{ m.content }}{{ '!' if loop.last and "
                         "m.role == 'assistant' }}\n\n{% endfor %}"));
  EXPECT_EQ(rewritten.stats().notes.untrainable, 2);
  EXPECT_EQ(rewritten.stats().notes.unended, 2);
  EXPECT_EQ(rewritten.stats().notes.dropped_bos, 0);
  EXPECT_EQ(trained_text(tokenizer_, rewritten.example(1)), "A2!");
  const auto warnings = data_warnings(rewritten.stats());
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_TRUE(warnings[0].starts_with("2 answers cannot be trained")) << warnings[0];
  EXPECT_TRUE(warnings[1].starts_with("the chat template ends 2 answers without")) << warnings[1];
  // Who does not train is told only what concerns it.
  const auto scored = data_warnings(rewritten.stats(), TargetUse::scored);
  ASSERT_EQ(scored.size(), 1u);
  EXPECT_TRUE(scored[0].starts_with("2 answers cannot be scored")) << scored[0];
  EXPECT_TRUE(data_warnings(rewritten.stats(), TargetUse::none).empty());
  EXPECT_TRUE(data_warnings(read("a.jsonl", text, options(1000)).stats()).empty());
  // Answers that say nothing; a call of a tool does, and what is no target may.
  const Dataset silent = read(
      "a.jsonl",
      R"({"prompt": "Q", "completion": ""})"
      "\n"
      R"({"messages": [{"role": "assistant", "content": "\n"}, {"role": "user", "content": ""},)"
      R"( {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]},)"
      R"( {"role": "assistant", "content": "", "weight": 0},)"
      R"( {"role": "assistant", "content": "A"}]})",
      with_template("{% for m in messages %}{{ m.content }}{{ m.tool_calls }}<|im_end|>"
                    "{% endfor %}"));
  EXPECT_EQ(silent.stats().notes.empty, 2);
  EXPECT_EQ(data_warnings(silent.stats()),
            std::vector<std::string>{"2 records have an empty text or answer"});
  // What the template refuses is named by its place.
  expect_error(ErrorKind::data, "a.jsonl:2: the chat template (line 1) refuses", [&] {
    read("a.jsonl", "{\"text\": \"x\"}\n" + text, with_template("{{ raise_exception('No.') }}"));
  });
}

TEST(DatasetExamples, RepetitionsAreCounted) {
  const auto data = [](const std::vector<Ids>& all) {
    std::vector<Example> examples;
    for (const Ids& ids : all) examples.push_back({ids, std::vector<uint8_t>(ids.size(), 1)});
    return Dataset(examples, 8);
  };
  const Dataset training = data({{1, 2, 3}, {1, 2}, {1, 2, 3}, {1, 2, 3}, {2, 1}});
  EXPECT_EQ(repeated_examples(training), 2);
  EXPECT_EQ(repeated_examples(Dataset()), 0);
  EXPECT_EQ(leaked_examples(data({{1, 2}, {2, 3}, {2, 1}, {1, 2}}), training), 3);
  EXPECT_EQ(leaked_examples(data({{1, 2, 3, 4}}), training), 0);
}

TEST(DatasetExamples, AreChecked) {
  expect_error(ErrorKind::data, "2 ids but 1 train flags", [] { Dataset({{{1, 2}, {1}}}, 10); });
  const Dataset data({{{}, {}}, {{1}, {1}}, {{1, 2}, {1, 0}}, {{1, 2}, {0, 1}}}, 10);
  EXPECT_EQ(data.size(), 1);
  EXPECT_EQ(data.stats().dropped, 3);
}

}  // namespace
}  // namespace jackscrew
