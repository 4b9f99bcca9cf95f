// Records as the files of other trainers have them.
#include "data/records.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <tuple>

#include "tests/support/read_records.h"
#include "tests/text/fixture.h"

namespace jackscrew {
namespace {

// "role: content" of each message, a "*" before those that are context only.
std::vector<std::string> turns(const char* json) {
  std::vector<std::string> out;
  const Record record = parse_record(json, "a.jsonl:1");
  for (const Message& message : std::get<ConversationRecord>(record).messages) {
    out.push_back((message.trained ? "" : "*") + message.role + ": " + message.content);
  }
  return out;
}

void refuse(const char* json, const std::string& part) {
  expect_message(ErrorKind::data, part, [&] { parse_record(json, "a.jsonl:1"); });
}

using Turns = std::vector<std::string>;

TEST(Records, ListsOfMessagesHaveEitherKeysOfMessages) {
  const Turns expected = {"user: a", "assistant: b"};
  EXPECT_EQ(turns(R"({"conversations": [{"role": "user", "content": "a"},
                                        {"role": "assistant", "content": "b"}]})"),
            expected);
  EXPECT_EQ(turns(R"({"messages": [{"from": "human", "value": "a"},
                                   {"from": "gpt", "value": "b"}]})"),
            expected);
  refuse(R"({"conversations": [{"from": "human", "text": "a"}]})",
         "a.jsonl:1, message 1: \"value\" is missing; its keys are from, text");
  refuse(R"({"conversations": [{"value": "a"}]})", "a.jsonl:1, message 1: \"from\" is missing");
  refuse(R"({"conversations": [{"text": "a"}]})", "a.jsonl:1, message 1: \"role\" is missing");
  refuse(R"({"conversations": "a"})", "a.jsonl:1: \"conversations\" is not a list of messages");
}

TEST(Records, SystemPromptsBesideTheMessages) {
  const Turns expected = {"system: s", "user: a", "assistant: b"};
  EXPECT_EQ(turns(R"({"system": "s", "conversations": [{"from": "human", "value": "a"},
                                                       {"from": "gpt", "value": "b"}]})"),
            expected);
  EXPECT_EQ(turns(R"({"system": [{"type": "text", "text": "s"}],
                      "messages": [{"role": "user", "content": "a"},
                                   {"role": "assistant", "content": "b"}]})"),
            expected);
  EXPECT_EQ(turns(R"({"system": "s", "messages": [{"role": "developer", "content": "s"},
                      {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
            expected);
  EXPECT_EQ(turns(R"({"system": "s", "prompt": "a", "completion": "b"})"), expected);
  EXPECT_EQ(turns(R"({"system": "s", "instruction": "a", "output": "b"})"), expected);
  for (const char* none : {R"({"system": "", "messages": [{"role": "user", "content": "a"}]})",
                           R"({"system": null, "messages": [{"role": "user", "content": "a"}]})"}) {
    EXPECT_EQ(turns(none), Turns{"user: a"});
  }
  EXPECT_TRUE(std::holds_alternative<CompletionRecord>(
      parse_record(R"({"system": "", "prompt": "a", "completion": "b"})", "a.jsonl:1")));
  refuse(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})",
         "a.jsonl:1: \"system\" and the first message are two system prompts");
  refuse(R"({"system": 3, "messages": [{"role": "user", "content": "a"}]})",
         "a.jsonl:1: \"system\" is number, expected text");
}

TEST(Records, WhatWasSaidBeforeAnInstruction) {
  const Turns expected = {"system: s", "user: a", "assistant: b", "user: c\n\nd", "assistant: e"};
  EXPECT_EQ(turns(R"({"instruction": "c", "input": "d", "output": "e", "system": "s",
                      "history": [["a", "b"]]})"),
            expected);
  // A field of a .csv is text.
  EXPECT_EQ(turns(R"({"instruction": "c", "input": "d", "output": "e", "system": "s",
                      "history": "[[\"a\", \"b\"]]"})"),
            expected);
  for (const char* none : {R"({"instruction": "c", "output": "e", "history": []})",
                           R"({"instruction": "c", "output": "e", "history": ""})",
                           R"({"instruction": "c", "output": "e", "history": "null"})",
                           R"({"instruction": "c", "output": "e", "history": null})"}) {
    EXPECT_EQ(turns(none), (Turns{"user: c", "assistant: e"}));
  }
  for (const char* bad : {R"({"instruction": "c", "output": "e", "history": [["a"]]})",
                          R"({"instruction": "c", "output": "e", "history": [["a", 1]]})",
                          R"({"instruction": "c", "output": "e", "history": "x"})",
                          R"({"instruction": "c", "output": "e", "history": {"a": ["b", "c"]}})"}) {
    refuse(bad, "a.jsonl:1: \"history\" is not a list of questions with their answers");
  }
}

TEST(Records, AQuestionThatIsInputAloneBeginsWithIt) {
  EXPECT_EQ(turns(R"({"instruction": "", "input": "d", "output": "e"})"),
            (Turns{"user: d", "assistant: e"}));
}

// As tables are written that have a column for what only some of their rows have.
TEST(Records, NullIsWhatIsNotThere) {
  EXPECT_EQ(turns(R"({"messages": null, "prompt": null, "text": null, "conversations": [
      {"from": "human", "value": "a", "role": null, "content": null, "weight": null},
      {"from": "gpt", "value": "b", "train": null, "tool_calls": null}]})"),
            (Turns{"user: a", "assistant: b"}));
  refuse(R"({"messages": null, "id": 1})", "nothing to train on: its keys are messages (null), id");
  refuse(R"({"messages": null, "text": null})", "a.jsonl:1: \"text\" is null, expected text");
}

TEST(Records, FieldsNameOtherKeys) {
  const auto read = [](const RecordFields& fields, const char* json) {
    std::vector<std::string> out;
    const Record record = parse_record(json, "a.jsonl:1", fields);
    for (const Message& message : std::get<ConversationRecord>(record).messages) {
      out.push_back(message.role + ": " + message.content);
    }
    return out;
  };
  const Turns expected = {"system: s", "user: a\n\nc", "assistant: b"};
  RecordFields pair;
  pair.instruction = "question";
  pair.input = "context";
  pair.output = "answer";
  pair.system = "rules";
  EXPECT_EQ(read(pair, R"({"question": "a", "context": "c", "answer": "b", "rules": "s"})"),
            expected);
  // What is named goes before what is known, and what is known is still read.
  EXPECT_EQ(read(pair, R"({"text": "t", "prompt": "p", "completion": "q", "rules": "s",
                           "messages": [], "question": "a", "context": "c", "answer": "b"})"),
            expected);
  EXPECT_EQ(read(pair, R"({"messages": [{"role": "user", "content": "a"}]})"), Turns{"user: a"});
  expect_message(ErrorKind::data, "\"answer\" is missing; its keys are question, output",
                 [&] { read(pair, R"({"question": "a", "output": "b"})"); });
  // One of the two is enough.
  RecordFields response;
  response.output = "response";
  EXPECT_EQ(read(response, R"({"instruction": "a", "response": "b", "output": "not this"})"),
            (Turns{"user: a", "assistant: b"}));
  RecordFields list;
  list.messages = "dialog";
  list.role = "speaker";
  list.content = "says";
  EXPECT_EQ(read(list, R"({"dialog": [{"speaker": "human", "says": "a"},
                                      {"speaker": "gpt", "says": "b"}]})"),
            (Turns{"user: a", "assistant: b"}));
  expect_message(ErrorKind::data, "message 1: \"says\" is missing; its keys are speaker, value",
                 [&] { read(list, R"({"dialog": [{"speaker": "human", "value": "a"}]})"); });
  RecordFields text;
  text.text = "body";
  EXPECT_EQ(std::get<TextRecord>(parse_record(R"({"body": "b", "text": "t"})", "a", text)).text,
            "b");
  EXPECT_EQ(std::get<TextRecord>(parse_record(R"({"text": "t"})", "a", text)).text, "t");
}

// A name that is given counts, also where it is one of those that records are recognised by.
TEST(Records, GivenNamesGoBeforeKnownOnes) {
  const auto text_of = [](const RecordFields& fields, const char* json) {
    return std::get<TextRecord>(parse_record(json, "a", fields)).text;
  };
  const RecordFields text{.text = "text"};
  EXPECT_EQ(text_of(text, R"({"instruction": "a", "output": "b", "text": "t"})"), "t");
  EXPECT_EQ(text_of(text, R"({"prompt": "a", "text": "t"})"), "t");
  const RecordFields pair{.instruction = "instruction"};
  const char* both = R"({"instruction": "a", "output": "b",
                         "messages": [{"role": "user", "content": "c"}]})";
  const auto chat = std::get<ConversationRecord>(parse_record(both, "a", pair));
  EXPECT_EQ(chat.messages.front().content, "a");
  EXPECT_EQ(turns(both), Turns{"user: c"});
}

TEST(Records, ANamedAnswerTakesThePlaceOfTheCompletion) {
  const RecordFields answer{.output = "answer"};
  for (const char* json : {R"({"prompt": "q", "completion": "c", "answer": "a"})",
                           R"({"prompt": "q", "answer": "a", "text": "t"})"}) {
    const auto pair = std::get<CompletionRecord>(parse_record(json, "a", answer));
    EXPECT_EQ(pair.prompt, "q");
    EXPECT_EQ(pair.completion, "a");
  }
  const char* lists = R"({"prompt": [{"role": "user", "content": "q"}],
                          "answer": [{"role": "assistant", "content": "a"}]})";
  const auto chat = std::get<ConversationRecord>(parse_record(lists, "a", answer));
  EXPECT_EQ(chat.messages.back().content, "a");
}

// It would be lost without a word, and other tokens trained than are meant.
TEST(Records, NamesThatTheirKindDoesNotReadAreRefused) {
  const auto refused = [](const RecordFields& fields, const char* json, const std::string& what) {
    const auto error = error_of(ErrorKind::data, [&] { parse_record(json, "a.jsonl:1", fields); });
    EXPECT_EQ(message_of(error), "a.jsonl:1: " + what + ", is not read of this kind of record")
        << error;
  };
  refused({.input = "context"}, R"({"prompt": "q", "completion": "c", "context": "x"})",
          R"("context", which field_input names)");
  refused({.input = "context", .output = "answer"},
          R"({"prompt": "q", "completion": "c", "context": "x", "answer": "a"})",
          R"("context", which field_input names)");
  refused({.input = "input"}, R"({"prompt": "q", "completion": "c", "input": "i"})",
          R"("input", which field_input names)");
  refused({.output = "answer"}, R"({"question": "q", "answer": "a", "text": "t"})",
          R"("answer", which field_output names)");
  refused({.system = "sys"}, R"({"text": "t", "sys": 42})", R"("sys", which field_system names)");
  // A table has columns that are empty in rows of another kind.
  for (const char* none : {R"({"text": "t", "sys": ""})", R"({"text": "t", "sys": null})"}) {
    EXPECT_NO_THROW(parse_record(none, "a", {.system = "sys"}));
  }
}

TEST(Records, TheQuestionIsNotPutBelowItself) {
  const auto question = [](const RecordFields& fields, const char* json) {
    return std::get<ConversationRecord>(parse_record(json, "a", fields)).messages.front().content;
  };
  const RecordFields pair{.instruction = "input", .output = "output"};
  EXPECT_EQ(question(pair, R"({"input": "a", "output": "b"})"), "a");
  // Nor is its answer.
  const RecordFields reversed{.instruction = "output", .output = "input"};
  EXPECT_EQ(question(reversed, R"({"input": "a", "output": "b"})"), "b");
}

TEST(Records, MessagesMayBeText) {
  EXPECT_EQ(turns(R"({"messages": "[{\"role\": \"user\", \"content\": \"a\"}]"})"),
            Turns{"user: a"});
  for (const char* bad : {R"({"messages": "a"})", R"({"messages": "{\"role\": \"user\"}"})"}) {
    refuse(bad, "a.jsonl:1: \"messages\" is not a list of messages");
  }
}

TEST(Records, HintsSayWhichFieldsWouldDo) {
  const auto hint = [](const char* json) {
    return hint_of(error_of(ErrorKind::data, [&] { parse_record(json, "a.jsonl:1"); }));
  };
  const auto ends = [](const std::string& text, const std::string& end) {
    EXPECT_TRUE(text.ends_with("; to read other keys, set " + end)) << text;
  };
  ends(hint(R"({"id": 1, "question": "a", "answer": "b"})"),
       "field_instruction=question field_output=answer");
  ends(hint(R"({"prompt": "a", "response": "b"})"),
       "field_instruction=prompt field_output=response");
  ends(hint(R"({"instruction": "a", "context": "c", "response": "b"})"),
       "field_instruction=instruction field_output=response field_input=context");
  ends(hint(R"({"input": "a", "context": "c", "output": "b"})"),
       "field_instruction=input field_output=output field_input=context");
  ends(hint(R"({"question": "a", "input": "d", "context": "c", "answer": "b"})"),
       "field_instruction=question field_output=answer");
  ends(hint(R"({"system_prompt": "s", "question": "a", "response": "b"})"),
       "field_instruction=question field_output=response field_system=system_prompt");
  ends(hint(R"({"Prompt": "a", "Completion": "b"})"),
       "field_instruction=Prompt field_output=Completion");
  ends(hint(R"({"Question": "a", "query": "q", "ANSWER": "b"})"),
       "field_instruction=Question field_output=ANSWER");
  ends(hint(R"({"Instruction": "a", "Input": "i", "Output": "b"})"),
       "field_instruction=Instruction field_output=Output field_input=Input");
  ends(hint(R"({"Text": "t"})"), "field_text=Text");
  ends(hint(R"({"Messages": [{"role": "user", "content": "a"}]})"), "field_messages=Messages");
  ends(hint(R"({"prompt": "a", "text": "t"})"), "field_text=text");
  ends(hint(R"({"dialogue": [{"role": "user", "content": "a"}]})"), "field_messages=dialogue");
  EXPECT_TRUE(hint(R"({"turns": [{"human": "a", "assistant": "b"}]})")
                  .ends_with("; write each turn of turns as messages with role and content"));
  // What an option would not read, none is named for.
  EXPECT_TRUE(hint(R"({"dialog": ["a", "b"]})")
                  .ends_with("; write each turn of dialog as an object with role and content"));
  ends(hint(R"({"dialog": ["a", "b"], "question": "a", "answer": "b"})"),
       "field_instruction=question field_output=answer");
  ends(hint(R"({"question": "a", "answer": {"text": "b"}})"),
       "field_instruction=KEY field_output=KEY, field_messages=KEY or field_text=KEY");
  ends(hint(R"({"title": "a", "content": "b"})"), "field_text=content");
  ends(hint(R"({"a": "b"})"),
       "field_instruction=KEY field_output=KEY, field_messages=KEY or field_text=KEY");
  EXPECT_NE(hint(R"({"messages": [{"speaker": "a"}]})").find("message_field_role"),
            std::string::npos);
}

// As Python's json writes them, whether the key is read or not.
TEST(Records, JsonHasNoNaN) {
  for (const auto& [json, word] :
       {std::pair(R"({"text": "a", "score": NaN})", "NaN"),
        std::pair(R"({"text": "a", "score": -Infinity, "other": 1})", "Infinity"),
        std::pair("\xEF\xBB\xBF{\"score\": Infinity}", "Infinity")}) {
    const auto error =
        error_of(ErrorKind::data, [json = json] { parse_record(json, "a.jsonl:1"); });
    const std::string end = fmt::format("; JSON has no {}: write null", word);
    EXPECT_TRUE(message_of(error).ends_with(end)) << error;
  }
  const auto other = error_of(ErrorKind::data, [&] { parse_record("{Nan}", "a.jsonl:1"); });
  EXPECT_EQ(other.find("JSON has no"), std::string::npos) << other;
}

TEST(Records, HintsNameAKeyThatIsASlip) {
  for (const auto& [json, expected] :
       {std::pair(R"({"instruction": "a", "ouput": "b"})", "is \"ouput\" meant to be \"output\"?"),
        std::pair(R"({"prompt": "a", "Completion": "b"})",
                  "is \"Completion\" meant to be \"completion\"?"),
        std::pair(R"({"messages": [{"role": "user", "contents": "a"}]})",
                  "is \"contents\" meant to be \"content\"?")}) {
    const auto error =
        error_of(ErrorKind::data, [json = json] { parse_record(json, "a.jsonl:1"); });
    EXPECT_EQ(hint_of(error), expected) << error;
  }
}

TEST(Records, HintsSayHowObjectsAreWrittenOnALine) {
  for (const char* json : {"{", " {\t\r"}) {
    const auto error = error_of(ErrorKind::data, [&] { parse_record(json, "a.jsonl:1"); });
    EXPECT_TRUE(message_of(error).ends_with("a.jsonl:1: the object goes on over several lines"))
        << error;
    EXPECT_NE(hint_of(error).find("as `jq -c .` does, or all of them as one array"),
              std::string::npos)
        << error;
  }
}

// On one line or on several, of which the first is none.
TEST(Records, HintsSayHowAFileWithAnArrayIsNamed) {
  for (const char* json : {R"([{"text": "a"}])", "[", R"([{"text": "a"},)"}) {
    const auto error = error_of(ErrorKind::data, [&] { parse_record(json, "a.jsonl:1"); });
    EXPECT_TRUE(hint_of(error).ends_with("; a file with an array of records is named .json"))
        << error;
  }
}

TEST(Records, PreferencesAreNotTrainedOn) {
  const auto hint = [](const char* json) {
    const auto error = error_of(ErrorKind::data, [&] { parse_record(json, "a.jsonl:1"); });
    EXPECT_NE(message_of(error).find("preference data"), std::string::npos) << message_of(error);
    return hint_of(error);
  };
  EXPECT_TRUE(hint(R"({"prompt": "a", "chosen": "b", "rejected": "c"})")
                  .ends_with("set field_instruction=prompt field_output=chosen"));
  EXPECT_TRUE(hint(R"({"prompt": "a", "chosen": [{"role": "user", "content": "a"}],
                       "rejected": []})")
                  .ends_with("set field_messages=chosen"));
  EXPECT_TRUE(hint(R"({"prompt": [], "chosen": [], "rejected": []})").ends_with("in the file"));
  EXPECT_TRUE(hint(R"({"chosen": "b", "rejected": "c"})").ends_with("set field_text=chosen"));
  // Without that, the question alone would be read, with nothing to learn.
  hint(R"({"conversations": [{"from": "human", "value": "a"}], "chosen": {}, "rejected": {}})");
  // A conversation beside them is one.
  EXPECT_EQ(
      turns(R"({"messages": [{"role": "user", "content": "a"}], "chosen": [], "rejected": []})"),
      Turns{"user: a"});
  RecordFields chosen;
  chosen.instruction = "prompt";
  chosen.output = "chosen";
  EXPECT_TRUE(std::holds_alternative<ConversationRecord>(
      parse_record(R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "a", chosen)));
}

// What KTO reads: answers that are to be learned beside others that are not.
TEST(Records, AnswersMarkedAsBadAreNotTrainedOn) {
  for (const char* marked :
       {R"({"prompt": "a", "completion": "b", "label": false})",
        R"({"prompt": [{"role": "user", "content": "a"}],
            "completion": [{"role": "assistant", "content": "b"}], "label": true})",
        R"({"messages": [{"role": "user", "content": "a"}], "label": false})",
        R"({"conversations": [{"from": "human", "value": "a"}], "label": false})",
        R"({"instruction": "a", "output": "b", "label": false})",
        R"({"messages": [{"role": "user", "content": "a"}], "kto_tag": false})",
        R"({"conversations": [{"from": "human", "value": "a"}], "kto_tag": true})",
        R"({"instruction": "a", "output": "b", "kto_tag": false})",
        R"({"prompt": "a", "completion": "b", "kto_tag": true})"}) {
    const auto error = error_of(ErrorKind::data, [&] { parse_record(marked, "a.jsonl:1"); });
    const bool by_label = std::string(marked).find("label") != std::string::npos;
    const std::string whose = fmt::format("whose {} is true", by_label ? "label" : "kto_tag");
    EXPECT_NE(message_of(error).find("preference data"), std::string::npos) << message_of(error);
    EXPECT_NE(hint_of(error).find(whose), std::string::npos) << hint_of(error);
  }
  // A class is none of that, nor is what the user has named.
  for (const char* label : {"1", "\"true\"", "null"}) {
    const std::string record =
        fmt::format(R"({{"messages": [{{"role": "user", "content": "a"}}], "label": {}}})", label);
    EXPECT_EQ(turns(record.c_str()), Turns{"user: a"});
  }
  RecordFields named;
  named.instruction = "prompt";
  named.output = "completion";
  EXPECT_TRUE(std::holds_alternative<ConversationRecord>(
      parse_record(R"({"prompt": "a", "completion": "b", "label": true})", "a", named)));
}

TEST(Records, PromptsOfMessagesAreContext) {
  EXPECT_EQ(turns(R"({"prompt": [{"role": "user", "content": "a"},
                                 {"role": "assistant", "content": "b"},
                                 {"role": "user", "content": "c"}],
                      "completion": [{"role": "assistant", "content": "d"}]})"),
            (Turns{"*user: a", "*assistant: b", "*user: c", "assistant: d"}));
  const Record called = parse_record(R"({"tools": [{"name": "f"}],
      "prompt": [{"role": "user", "content": "a"}],
      "completion": [{"role": "assistant", "content": "d"}]})",
                                     "a.jsonl:1");
  EXPECT_FALSE(std::get<ConversationRecord>(called).tools.is_none());
  refuse(R"({"prompt": [{"role": "user", "content": "a"}], "completion": "b"})",
         "a.jsonl:1: \"completion\" is not a list of messages");
  refuse(R"({"prompt": [{"role": "user", "content": "a"}]})",
         "a.jsonl:1: \"completion\" is not a list of messages");
  refuse(R"({"prompt": [], "completion": []})", "a.jsonl:1: \"prompt\" holds no message");
  refuse(R"({"prompt": [{"role": "user", "content": "a"}], "completion": [1]})",
         "a.jsonl:1, message 2: an object was expected");
}

// As a .csv has them.
TEST(Records, PromptsOfMessagesMayBeText) {
  const auto record = [](const char* prompt, const char* completion) {
    return fmt::format(R"({{"prompt": "{}", "completion": "{}"}})", prompt, completion);
  };
  const char* question = R"( [{\"role\": \"user\", \"content\": \"a\"}])";
  const char* answer = R"([{\"from\": \"gpt\", \"value\": \"b\"}])";
  EXPECT_EQ(turns(record(question, answer).c_str()), (Turns{"*user: a", "assistant: b"}));
  // What is no message is a text that is trained as it stands.
  for (const auto& [prompt, completion] :
       {std::pair(question, "b"), std::pair("a", answer), std::pair("[]", "[]"),
        std::pair(R"([{\"id\": 1}])", R"([{\"id\": 2}])"), std::pair("[1]", "[{}]")}) {
    const Record pair = parse_record(record(prompt, completion), "a.jsonl:1");
    EXPECT_TRUE(std::holds_alternative<CompletionRecord>(pair)) << prompt;
  }
}

// A tree finds each key among all before it: a table with a key for each row would take for ever.
TEST(Records, HaveAFewKeys) {
  const auto of_keys = [](size_t count, bool alike) {
    std::string text = R"({"text": "a", "table": {)";
    for (size_t i = 0; i < count; ++i) {
      text += fmt::format("{}\"{}\": 0", i == 0 ? "" : ", ", alike ? 0 : i);
    }
    return text + "}}";
  };
  for (const bool alike : {false, true}) {
    EXPECT_NO_THROW(parse_record(of_keys(10'000, alike), "a.jsonl:1"));
    const auto error =
        error_of(ErrorKind::data, [&] { parse_record(of_keys(10'001, alike), "a.jsonl:1"); });
    EXPECT_NE(message_of(error).find("a.jsonl:1: an object of more than 10000 keys, \""),
              std::string::npos)
        << message_of(error);
    EXPECT_NE(hint_of(error).find("one object a row"), std::string::npos) << hint_of(error);
  }
  // Nor has JSON within a text more; of equal keys the last one counts, in the place of the first.
  std::string inside = of_keys(10'001, false);
  for (size_t at = 0; (at = inside.find('"', at)) != std::string::npos; at += 2) {
    inside.insert(at, 1, '\\');
  }
  refuse(
      ("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": \"" + inside + "\"}")
          .c_str(),
      "a.jsonl:1: an object of more than 10000 keys");
  EXPECT_EQ(std::get<TextRecord>(parse_record(R"({"text": "a", "text": "b"})", "a")).text, "b");
}

// The parser takes it for the end: what follows would be lost.
TEST(Records, HaveNoNul) {
  const std::string two("{\"text\": \"a\"}\0{\"text\": \"b\"}", 27);
  expect_message(ErrorKind::data, "a.jsonl:1: not valid JSON: byte 14 of the text is 0",
                 [&] { parse_record(two, "a.jsonl:1"); });
  // One that is spelled out belongs to its text, also where that looks like JSON.
  EXPECT_EQ(std::get<TextRecord>(parse_record(R"({"text": "a\u0000b"})", "a")).text,
            std::string("a\0b", 3));
  refuse(R"({"messages": [{"role": "user", "content": "a"}], "tools": "[]\u0000[]"})",
         "a.jsonl:1: \"tools\" is not a list");
}

// As a tree of JSON a line takes several times its bytes: what is no record is refused unread.
TEST(Records, HaveABound) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_long_records_{}", ::getpid());
  fs::create_directories(directory);
  const std::string text(size_t{64} << 20, 'a');
  const std::string small = "\"text\": \"b\"";
  const std::string last = "{" + small + "}";
  for (const auto& [name, content, place] :
       {std::tuple("a.jsonl", "{" + small + "}\n\n{\"text\": \"" + text + "\"}\n" + last,
                   "a.jsonl:3"),
        std::tuple("a.json", "[{" + small + "}, {\"text\": \"" + text + "\"}, " + last + "]",
                   "a.json, record 2"),
        std::tuple("a.csv", "text\nb\n\"c\n" + text + "\"\nb\n", "a.csv:3")}) {
    const std::vector<fs::path> files = {directory / name};
    write_text_atomic(files[0], content);
    int64_t read = 0;
    const std::string error = message_of(error_of(ErrorKind::data, [&] {
      read_records(files, 0, [&](const Record&, const std::string&) { return ++read > 0; });
    }));
    EXPECT_EQ(read, 1) << name;
    EXPECT_TRUE(error.starts_with((directory / place).string() + ": a r")) << error;
    EXPECT_NE(error.find("64.0 MiB"), std::string::npos) << error;
    // It can be left out like other bad records.
    int64_t good = 0;
    int64_t bad = 0;
    find_records(files, 0, [&](const FoundRecord& found) {
      try {
        (void)found.parse({});
        ++good;
      } catch (const Error&) {
        ++bad;
      }
      return true;
    });
    EXPECT_EQ(good, 2) << name;
    EXPECT_EQ(bad, 1) << name;
  }
  fs::remove_all(directory);
}

}  // namespace
}  // namespace jackscrew
