// What a run notices of data that are others than before.
#include <gtest/gtest.h>

#include <set>

#include "tests/data/dataset_fixture.h"

namespace jackscrew {
namespace {

TEST_F(DatasetTest, TheFingerprintIsOfCallsAndWeightsToo) {
  const auto of = [&](const std::string& answer) {
    return read("d.jsonl",
                R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", )" +
                    answer + "}, {\"role\": \"assistant\", \"content\": \"end\"}]}\n",
                options(100))
        .fingerprint();
  };
  const auto call = [](const char* argument) {
    return std::string(R"("content": "c", "tool_calls": [{"type": "function", "function": )"
                       R"({"name": "f", "arguments": {"x": )") +
           argument + "}}}]";
  };
  const std::string plain = of(R"("content": "c")");
  EXPECT_EQ(of(R"("content": "c", "train": true)"), plain);
  EXPECT_NE(of(R"("content": "c", "train": false)"), plain);
  EXPECT_NE(of(call("1")), plain);
  EXPECT_NE(of(call("1")), of(call("2")));
}

TEST_F(DatasetTest, TheFingerprintIsOfVariablesOfTheTemplateToo) {
  const auto of = [&](const std::string& beside) {
    return read("d.jsonl", R"({"instruction": "q", "output": "a")" + beside + "}", options(100))
        .fingerprint();
  };
  const std::string thinking = of(R"(, "chat_template_kwargs": {"enable_thinking": true})");
  EXPECT_NE(thinking, of(""));
  EXPECT_NE(thinking, of(R"(, "chat_template_kwargs": {"enable_thinking": false})"));
  EXPECT_NE(thinking, of(R"(, "chat_template_kwargs": {"thinking": true})"));
  EXPECT_EQ(of(R"(, "chat_template_kwargs": {})"), of(""));
}

// Nothing of this changes how many records and bytes there are.
TEST_F(DatasetTest, TheFingerprintIsOfRolesKindsAndBorders) {
  const auto of = [&](const std::string& text, const char* name = "d.jsonl") {
    return read(name, text, options(100)).fingerprint();
  };
  const auto turns = [&](const char* first, const char* second) {
    return of(fmt::format(R"({{"messages": [{{"role": "{}", "content": "q"}}, )"
                          R"({{"role": "{}", "content": "a"}}]}})",
                          first, second));
  };
  const std::string chat = turns("user", "assistant");
  EXPECT_NE(turns("system", "assistant"), chat);
  EXPECT_NE(turns("assistant", "user"), chat);
  EXPECT_EQ(of(R"({"instruction": "q", "output": "a"})"), chat);
  const std::string pair = of(R"({"prompt": "q", "completion": "a"})");
  EXPECT_NE(pair, chat);
  EXPECT_NE(of(R"({"prompt": "q", "completion": "a", "tools": []})"), pair);
  EXPECT_NE(of(R"({"text": "qa"})"), pair);
  EXPECT_NE(of("qa", "d.txt"), of(R"({"text": "qa"})"));
  const auto pair_of = [&](const char* prompt, const char* completion) {
    return of(fmt::format(R"({{"prompt": "{}", "completion": "{}"}})", prompt, completion));
  };
  EXPECT_NE(pair_of("one two", " three"), pair_of("one", " two three"));
  EXPECT_NE(of("{\"text\": \"one two\"}\n{\"text\": \" three\"}\n"),
            of("{\"text\": \"one\"}\n{\"text\": \" two three\"}\n"));
}

// A text that is alone has the fingerprint that it always had.
TEST_F(DatasetTest, TheFingerprintIsOfTheBordersOfFiles) {
  EXPECT_EQ(read("alone.txt", "123456789", options(100)).fingerprint(),
            "1 record of 9 bytes, checksum e3069283");
  const auto of_two = [&](const char* first, const char* second) {
    fs::create_directories(directory_ / "two");
    write("two/a.txt", first);
    write("two/b.txt", second);
    return Dataset::read(directory_ / "two", tokenizer_, options(100)).fingerprint();
  };
  EXPECT_NE(of_two("one two", " three"), of_two("one", " two three"));
}

// Nor is held out what is no training data: which data sets were drawn from is noticed.
TEST(DatasetSplit, DrawsNothingOfADataSetThatIsNotTrainedOn) {
  std::vector<Dataset> parts;
  for (const int32_t id : {1, 2, 3}) {
    parts.emplace_back(std::vector<Example>(10, Example{{id, id}, {0, 1}}), 10);
  }
  const Dataset all = Dataset::join(parts);
  const auto drawn = [&](std::vector<double> weights) { return all.split(15, 1, weights).second; };
  std::set<int32_t> ids;
  for (const Example& example : examples_of(drawn({1, 0, 0.5}))) ids.insert(example.ids[0]);
  EXPECT_EQ(ids, (std::set<int32_t>{1, 3}));
  EXPECT_NE(drawn({1, 0, 1}).fingerprint(), drawn({1, 1, 0}).fingerprint());
  EXPECT_EQ(drawn({1, 2, 3}).fingerprint(), drawn({}).fingerprint());
  expect_error(ErrorKind::usage, "val_size 15 is too large for 10 examples", [&] {
    drawn({1, 0, 0});
  });
}

}  // namespace
}  // namespace jackscrew
