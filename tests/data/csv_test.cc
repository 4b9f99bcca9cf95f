// Comma-separated values, alone and as training records.
#include "data/csv.h"

#include <gtest/gtest.h>

#include "tests/cli/run_program.h"
#include "tests/support/errors.h"
#include "tests/support/read_records.h"

namespace jackscrew {
namespace {

using Rows = std::vector<std::vector<std::string>>;

Rows rows_of(std::string_view text, size_t most_of_row = 100) {
  CsvReader reader(text, "a.csv", most_of_row);
  Rows rows;
  for (std::vector<std::string> fields; reader.next(fields);) rows.push_back(fields);
  return rows;
}

TEST(Csv, ReadsFieldsAsRfc4180HasThem) {
  EXPECT_EQ(rows_of("a,b\n1,2\n"), (Rows{{"a", "b"}, {"1", "2"}}));
  EXPECT_EQ(rows_of("a,b\r\n1,2"), (Rows{{"a", "b"}, {"1", "2"}}));
  EXPECT_EQ(rows_of("\xEF\xBB\xBF\"a, b\",\"say \"\"hi\"\"\"\n"), (Rows{{"a, b", "say \"hi\""}}));
  EXPECT_EQ(rows_of("\"two\nlines\",x\n"), (Rows{{"two\nlines", "x"}}));
  EXPECT_EQ(rows_of(",\n,\n"), (Rows{{"", ""}, {"", ""}}));
  EXPECT_EQ(rows_of("a\n\n\r\nb"), (Rows{{"a"}, {"b"}}));
  EXPECT_EQ(rows_of("\"\"\n"), (Rows{{""}}));
  EXPECT_EQ(rows_of("a\"b,c\n"), (Rows{{"a\"b", "c"}}));
  EXPECT_EQ(rows_of(""), Rows{});
  EXPECT_EQ(rows_of("\xEF\xBB\xBF"), Rows{});
}

// What is too long is not kept, and what comes after it is read.
TEST(Csv, BoundsARow) {
  EXPECT_EQ(rows_of("a,b\n1234,678\n\"2345\",7\n", 8).size(), 3u);
  EXPECT_EQ(rows_of("a,b\n1234,6789\nc\n", 8), (Rows{{"a", "b"}, {}, {"c"}}));
  EXPECT_EQ(rows_of("a,b\n1,\"4\n67890\"\nc\n", 8), (Rows{{"a", "b"}, {}, {"c"}}));
}

TEST(Csv, NamesTheLineOfABrokenQuote) {
  EXPECT_EQ(message_of(error_of(ErrorKind::data, [&] { rows_of("a\n\"b\nc"); })),
            "a.csv:2: a quote is not closed");
  std::vector<std::string> fields;
  CsvReader reader("\"a\nb\"x,\"\nc\n", "a.csv", 100);
  ASSERT_TRUE(reader.next(fields));
  ASSERT_TRUE(reader.complaint().has_value());
  EXPECT_STREQ(reader.complaint()->what(), "a.csv:2: text after the closing quote of a field");
  ASSERT_TRUE(reader.next(fields));
  EXPECT_FALSE(reader.complaint().has_value());
  EXPECT_EQ(fields, std::vector<std::string>{"c"});
  EXPECT_EQ(reader.line(), 3);
}

TEST(Csv, RowsAreRecords) {
  const TemporaryDirectory directory("jackscrew_csv");
  const auto read = [&](const std::string& text, const RecordFields& fields = {}) {
    std::vector<std::string> seen;
    int64_t bytes = 0;
    const fs::path path = directory.file("data.csv", text);
    read_records(
        {&path, 1}, 0,
        [&](const Record& record, const std::string& place) {
          const auto* chat = std::get_if<ConversationRecord>(&record);
          seen.push_back(place.substr(place.find(".csv")) + " " +
                         (chat == nullptr ? std::get<TextRecord>(record).text
                                          : chat->messages.front().content + "|" +
                                                chat->messages.back().content));
          return true;
        },
        [&](int64_t more) { bytes += more; }, fields);
    return seen;
  };
  EXPECT_EQ(
      read("instruction,input,output\nAdd,\"1, 2\",3\nName,,\"A\nB\"\nLast,,x\n"),
      (std::vector<std::string>{".csv:2 Add\n\n1, 2|3", ".csv:3 Name|A\nB", ".csv:5 Last|x"}));
  EXPECT_EQ(read("id,text\n7,hello\n"), std::vector<std::string>{".csv:2 hello"});
  const auto expect_refused = [&](const std::string& text, const std::string& part) {
    expect_message(ErrorKind::data, part, [&] { read(text); });
  };
  expect_refused("instruction,output\na,b,c\n", "data.csv:2: 3 fields where the first row has 2");
  expect_refused("text,text\na,b\n", "column \"text\" appears twice");
  expect_refused("text,name\na,caf\xE9\n", "data.csv:2: bytes that are not UTF-8");
  expect_refused("text,caf\xE9\na,b\n", "data.csv:1: bytes that are not UTF-8");
  const std::string zero = "a byte that is 0, as in UTF-16";
  expect_refused(std::string("text\na\0b\n", 9), "data.csv:2: " + zero);
  expect_refused(std::string("t\0e\0x\0t\0\n\0a\0\n\0", 14), "data.csv:1: " + zero);
  expect_refused("text\n\"a\"b\n", "data.csv:2: text after the closing quote of a field");
  expect_refused("\"text\"b\n", "data.csv:1: text after the closing quote of a field");
  expect_refused("id,\"text\";\n", "data.csv:1: text after the closing quote of a field");
  for (const char* text : {"instruction;output\na;b\n", "instruction\toutput\na\tb\n",
                           "\"instruction\";\"output\"\n\"a\";\"b\"\n",
                           "\"instruction\"\t\"output\"\n\"a\"\t\"b\"\n"}) {
    expect_refused(text, "data.csv:1: the fields are not separated by commas");
  }
  expect_refused("question,answer\na,b\n", "nothing to train on: its keys are question, answer");
  // A known name in other letters or with space around it, unless another column may be meant.
  EXPECT_EQ(read("Instruction, OUTPUT ,input\na,b,c\n"),
            std::vector<std::string>{".csv:2 a\n\nc|b"});
  EXPECT_EQ(read("Text,text\na,b\n"), std::vector<std::string>{".csv:2 b"});
  expect_refused("Text,TEXT\na,b\n", "nothing to train on: its keys are Text, TEXT");
  // So with other names, in what is guessed of them and where they are given.
  const std::string other = "Question, ANSWER \na,b\n";
  const std::string named = "field_instruction=question field_output=answer";
  EXPECT_NE(hint_of(error_of(ErrorKind::data, [&] { read(other); })).find(named),
            std::string::npos);
  EXPECT_EQ(read(other, {.instruction = "question", .output = "answer"}),
            std::vector<std::string>{".csv:2 a|b"});
  EXPECT_EQ(read(other, {.instruction = "Question", .output = " ANSWER "}),
            std::vector<std::string>{".csv:2 a|b"});
  // What the user named is that column.
  const fs::path path = directory.file("named.csv", "Text,Output,Instruction\na,b,c\n");
  read_records({&path, 1}, 0,
               [](const Record& record, const std::string&) {
                 EXPECT_EQ(std::get<TextRecord>(record).text, "a");
                 return true;
               },
               {}, {.text = "Text"});
}

// Those that KTO needs; a label of other texts is a class, and one that the user named is a text.
TEST(Csv, AnswersMarkedAsBadAreNotTrainedOn) {
  const TemporaryDirectory directory("jackscrew_csv_marked");
  const auto read = [&](const std::string& text, const RecordFields& fields) {
    const fs::path path = directory.file("data.csv", text);
    int records = 0;
    read_records(
        {&path, 1}, 0,
        [&](const Record&, const std::string&) {
          ++records;
          return true;
        },
        {}, fields);
    return records;
  };
  for (const char* text :
       {"prompt,completion,label\na,b,false\n", "Prompt,Completion,Label\na,b,True\n",
        "label,prompt,completion\nFALSE,a,b\n",
        "conversations,label\n\"[{\"\"from\"\": \"\"human\"\", \"\"value\"\": "
        "\"\"a\"\"}]\",false\n",
        "instruction,output,KTO_tag\na,b,False\n"}) {
    expect_message(ErrorKind::data, "data.csv:2: preference data", [&] { read(text, {}); });
  }
  for (const char* label : {"1", "positive", ""}) {
    EXPECT_EQ(read(fmt::format("prompt,completion,label\na,b,{}\n", label), {}), 1) << label;
  }
  RecordFields named;
  named.instruction = "prompt";
  named.output = "label";
  EXPECT_EQ(read("prompt,completion,label\na,b,true\n", named), 1);
  named.instruction = "";
  EXPECT_EQ(read("prompt,completion,label\na,b,true\n", named), 1);
  EXPECT_EQ(read("text,label\na,true\n", {}), 1);
  named.output = "completion";
  expect_message(ErrorKind::data, "data.csv:2: preference data",
                 [&] { read("prompt,completion,label\na,b,true\n", named); });
  named.output = "response";
  expect_message(ErrorKind::data, "data.csv:2: preference data",
                 [&] { read("instruction,response,label\na,b,false\n", named); });
}

}  // namespace
}  // namespace jackscrew
