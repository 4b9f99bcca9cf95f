// What messages, and what is beside them, may be in the files of other trainers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/data/dataset_fixture.h"
#include "tests/text/jinja/fixture.h"

namespace jackscrew {
namespace {

ConversationRecord conversation_of(const std::string& json) {
  return std::get<ConversationRecord>(parse_record(json, "a.jsonl:1"));
}

void refuse_json(const std::string& json, const std::string& part) {
  expect_error(ErrorKind::data, part, [&] { parse_record(json, "a.jsonl:1"); });
}

// A question, and an answer that holds `members`.
std::string answered(const std::string& members) {
  return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", )" + members +
         "}]}";
}

std::string by_template(const std::string& source, const ConversationRecord& record) {
  std::string text;
  for (const Segment& segment : render_chat(jinja::own_format(source), record.messages, false,
                                            record.tools, record.variables)
                                    .segments) {
    text += segment.text;
  }
  return text;
}

TEST(Messages, PartsSayWhetherTheyAreLearned) {
  const auto trained = [](const std::string& members) {
    return conversation_of(answered(members)).messages.at(1).trained;
  };
  EXPECT_TRUE(trained(R"("content": [{"type": "text", "text": "a"}])"));
  EXPECT_FALSE(trained(R"("content": [{"type": "text", "text": "a", "train": false}])"));
  EXPECT_FALSE(
      trained(R"("content": [{"text": "a", "weight": 0}, {"text": "b", "train": false}])"));
  EXPECT_TRUE(trained(R"("content": [{"text": "a", "weight": 1}, {"text": "b", "train": null}])"));
  // A part without a flag is as its message is; a part's own goes before that.
  EXPECT_FALSE(trained(R"("train": false, "content": [{"text": "a"}, {"text": "b"}])"));
  EXPECT_FALSE(
      trained(R"("train": false, "content": [{"text": "a"}, {"text": "b", "weight": 0}])"));
  EXPECT_TRUE(trained(R"("train": false, "content": [{"text": "a", "train": true}])"));
  EXPECT_FALSE(trained(R"("train": false, "content": [])"));
}

TEST(Messages, FlagsOfOtherPrograms) {
  const auto answer = [](const std::string& members) {
    return conversation_of(answered(R"("content": "a", )" + members)).messages.at(1);
  };
  EXPECT_FALSE(answer(R"("loss": false)").trained);
  EXPECT_TRUE(answer(R"("loss": true)").trained);
  EXPECT_TRUE(answer(R"("loss": true)").fields.empty());
  // A measure, which a template may read.
  EXPECT_TRUE(answer(R"("loss": 0)").trained);
  EXPECT_EQ(answer(R"("loss": 0)").fields.size(), 1u);
  for (const char* flag : {"training", "trainable", "mask", "masked"}) {
    for (const char* value : {"true", "false"}) {
      const std::string member = fmt::format(R"("{}": {})", flag, value);
      const std::string refused =
          fmt::format("\"{}\" is a flag that is not read | what is read is train: false", flag);
      refuse_json(answered(R"("content": "a", )" + member), "a.jsonl:1, message 2: " + refused);
      refuse_json(R"({"messages": [{"role": "user", "content": "q", )" + member + "}]}", refused);
    }
    EXPECT_EQ(answer(fmt::format(R"("{}": "x")", flag)).fields.size(), 1u);
  }
}

TEST(Messages, WhatIsNoAnswerIsNotMarkedAsLearned) {
  const auto question = [](const char* role, const std::string& member) {
    return fmt::format(R"({{"messages": [{{"role": "{}", "content": "q", {}}}]}})", role, member);
  };
  for (const char* key : {"train", "loss"}) {
    const std::string member = fmt::format("\"{}\": ", key);
    for (const char* role : {"system", "user", "tool"}) {
      refuse_json(
          question(role, member + "true"),
          fmt::format("a.jsonl:1, message 1: \"{0}\" is true in a message that is not an answer "
                      "| leave {0} out of it: answers are learned, or all messages with "
                      "train_on_inputs=true",
                      key));
      EXPECT_NO_THROW(conversation_of(question(role, member + "false")));
    }
    EXPECT_NO_THROW(conversation_of(question("assistant", member + "true")));
  }
  EXPECT_NO_THROW(conversation_of(R"({"conversations": [
      {"from": "function_call", "value": "{\"name\": \"f\"}", "train": true}]})"));
}

TEST(Messages, PartsThatDifferAreRefused) {
  const std::string differ =
      "a.jsonl:1, message 2: some parts of the message are to be learned, others are not | a part "
      "of a message cannot be kept out of the loss";
  refuse_json(answered(R"("content": [{"text": "a", "train": false}, {"text": "b"}])"), differ);
  refuse_json(answered(R"("content": [{"text": "a", "weight": 0}, {"text": "b", "weight": 1}])"),
              differ);
  refuse_json(
      answered(R"("train": false, "content": [{"text": "a"}, {"text": "b", "train": true}])"),
      differ);
  refuse_json(answered(R"("content": [{"text": "a", "weight": 2}])"), "\"weight\" is not 0 or 1");
  // Of a question nothing is learned.
  EXPECT_EQ(conversation_of(R"({"messages": [{"role": "user",
                "content": [{"text": "a", "train": false}, {"text": "b", "train": true}]}]})")
                .messages[0]
                .content,
            "ab");
  refuse_json(answered(R"("content": "ab", "train_detail": [{"begin_offset": 0, "end_offset": 0,
                                                             "train": false}])"),
              "a.jsonl:1, message 2: \"train_detail\" tells parts of a message apart | a part of");
  EXPECT_TRUE(
      conversation_of(answered(R"("content": "a", "train_detail": null)")).messages[1].trained);
}

TEST(Messages, PartsWithoutTextAreToldByWhatTheyAre) {
  refuse_json(answered(R"("content": [{"type": "image", "text": null}])"),
              "\"content\" has a part that is not text | only text is trained on");
  refuse_json(answered(R"("content": [{"type": "text", "value": "a"}])"),
              "\"content\" has a part without its text; its keys are type, value | the text of a "
              "part is called text");
  refuse_json(answered(R"("content": [{"type": "text", "text": null}])"),
              "\"content\" has a part without its text; its keys are type, text (null) | the text");
}

// OpenAI's name for tools while calls were `function_call`.
TEST(Messages, FunctionsAreTools) {
  const std::string messages = R"("messages": [{"role": "user", "content": "q"}])";
  const auto tools = [&](const std::string& beside) {
    return by_template("{{ tools | tojson }}",
                       conversation_of("{" + beside + ", " + messages + "}"));
  };
  const std::string expected = R"([{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(tools(R"("functions": [{"name": "f"}])"), expected);
  EXPECT_EQ(tools(R"("functions": [{"name": "f"}], "tools": null)"), expected);
  EXPECT_EQ(tools(R"("functions": [{"name": "f"}], "tools": [])"), expected);
  EXPECT_EQ(tools(R"("functions": "[{\"name\": \"f\"}]")"), expected);
  EXPECT_EQ(tools(R"("functions": [{"type": "function", "function": {"name": "f"}}])"), expected);
  EXPECT_EQ(tools(R"("functions": [{"name": "f"}], "tools": [{"name": "g"}])"),
            R"([{"name": "g"}])");
  EXPECT_EQ(tools(R"("functions": [{"name": "f"}], "tools": "null")"), expected);
  EXPECT_EQ(tools(R"("functions": null)"), "null");
  EXPECT_EQ(tools(R"("functions": "null")"), "null");
  refuse_json(R"({"functions": ["f"], )" + messages + "}",
              "a.jsonl:1: a tool of \"functions\" is string, expected an object");
}

// A table gives each row the keys of all.
TEST(Messages, NullIsNotThere) {
  const ConversationRecord record = conversation_of(R"({
      "tools": [{"type": "function", "id": null, "function": {"name": "f", "parameters": {
          "type": "object", "properties": {
              "a": {"type": "string", "enum": null, "default": null, "x": [{"y": null, "z": 1}]},
              "b": null,
              "c": {"const": null, "enum": ["d", null], "default": {"e": null}}}}}}],
      "messages": [{"role": "user", "content": "q", "name": null, "tool_calls": null},
          {"role": "assistant", "content": null, "reasoning_content": null, "tool_calls": [
              {"id": null,
               "function": {"name": "f", "strict": null, "arguments": {"a": null}}}]}]})");
  EXPECT_EQ(by_template("{% for m in messages %}{{ m | list | join(' ') }}|{% endfor %}", record),
            "role content|role content tool_calls|");
  EXPECT_EQ(by_template("{{ messages[1].tool_calls | tojson }}", record),
            R"([{"function": {"name": "f", "arguments": {"a": null}}}])");
  EXPECT_EQ(
      by_template("{{ tools[0].function.parameters.properties | tojson }} {{ 'id' in tools[0] }}",
                  record),
      R"({"a": {"type": "string", "default": null, "x": [{"z": 1}]}, )"
      R"("c": {"const": null, "enum": ["d", null], "default": {"e": null}}} False)");
}

// Where parameters have names that mean something else in a schema.
TEST(Messages, NullIsNotThereOfParametersByAnyName) {
  const auto parameters = [](const std::string& schema) {
    return by_template("{{ tools[0].parameters | tojson }}",
                       conversation_of(R"({"tools": [{"name": "f", "parameters": )" + schema +
                                       R"(}], "messages": [{"role": "user", "content": "q"}]})"));
  };
  EXPECT_EQ(parameters(R"({"properties": {
                "default": null, "const": null, "enum": {"type": "string", "description": null},
                "examples": {"type": "array", "items": null, "default": null},
                "properties": {"type": "object", "const": null, "properties": {"const": null}},
                "x": {"enum": ["a", null], "default": null, "description": null}}})"),
            R"({"properties": {"enum": {"type": "string"}, )"
            R"("examples": {"type": "array", "default": null}, )"
            R"("properties": {"type": "object", "const": null, "properties": {}}, )"
            R"("x": {"enum": ["a", null], "default": null}}})");
  for (const std::string word : {"patternProperties", "$defs", "definitions", "dependentSchemas"}) {
    EXPECT_EQ(parameters("{\"" + word + R"(": {"default": null, "enum": {"type": null}}})"),
              "{\"" + word + R"(": {"enum": {}}})");
  }
}

// As LLaVA, LLaMA-Factory and TRL have them, with and without a mark in the text.
TEST(Messages, AboutWhatIsNotTextAreRefused) {
  const std::string turns =
      R"("conversations": [{"from": "human", "value": "<image>\nq"},
                           {"from": "gpt", "value": "a"}])";
  for (const char* media :
       {R"("image": "x.jpg")", R"("images": ["x.jpg"])",
        R"("images": [{"bytes": "eA==", "path": null}])", R"("videos": ["x.mp4"])",
        R"("video": "x")", R"("audios": ["x.wav"])", R"("audio": "x")"}) {
    const std::string of = std::string("{") + media + ", ";
    refuse_json(of + turns + "}", "\" holds what is not text | only text is trained on");
    refuse_json(of + R"("instruction": "q", "output": "a"})", "\" holds what is not text");
    refuse_json(of + R"("prompt": "q", "completion": "a"})", "\" holds what is not text");
    EXPECT_EQ(std::get<TextRecord>(parse_record(of + R"("text": "a"})", "a")).text, "a");
  }
  // In a mixed set, those that have none.
  for (const char* none :
       {R"("images": [])", R"("images": null)", R"("image": "")", R"("images": [null])",
        R"("image": {"bytes": null, "path": null})", R"("images": 0)"}) {
    EXPECT_EQ(conversation_of(std::string("{") + none + ", " + turns + "}").messages.size(), 2u);
  }
  RecordFields fields;
  fields.input = "audio";  // what was said, in words
  EXPECT_NO_THROW(
      parse_record(R"({"instruction": "q", "audio": "i", "output": "a"})", "a", fields));
}

// TRL's, which it passes to the template.
TEST(Messages, TemplatesSeeVariablesOfTheRecord) {
  const std::string source =
      "{{ enable_thinking is defined }} {{ enable_thinking }} {{ depth.of[0] }} {{ empty }}"
      "{% for m in messages %} {{ m.content }}{% endfor %}";
  const std::string kwargs =
      R"("chat_template_kwargs": {"enable_thinking": false, "depth": {"of": [7]}, "empty": null})";
  for (const char* record :
       {R"("messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])",
        R"("conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])",
        R"("instruction": "q", "output": "a")", R"("prompt": "q", "completion": "a")",
        R"("prompt": [{"role": "user", "content": "q"}],
           "completion": [{"role": "assistant", "content": "a"}])"}) {
    const auto rendered = [&](const std::string& beside) {
      return by_template(source, conversation_of("{" + beside + ", " + record + "}"));
    };
    EXPECT_EQ(rendered(kwargs), "True False 7  q a");
    EXPECT_EQ(rendered(R"("chat_template_kwargs": "{\"depth\": {\"of\": [8]}}")"), "False  8  q a");
  }
  for (const char* none : {"{}", "null", R"("")", R"("null")", R"({"enable_thinking": null})"}) {
    EXPECT_TRUE(std::holds_alternative<CompletionRecord>(parse_record(
        std::string(R"({"prompt": "q", "completion": "a", "chat_template_kwargs": )") + none + "}",
        "a.jsonl:1")));
  }
}

TEST(Messages, VariablesOfTheProgramAreNotTheRecords) {
  const auto refused = [](const std::string& value, const std::string& part) {
    refuse_json(R"({"instruction": "q", "output": "a", "chat_template_kwargs": )" + value + "}",
                "a.jsonl:1: \"chat_template_kwargs\" " + part);
  };
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token",
                           "eos_token", "unk_token", "pad_token"}) {
    refused(fmt::format(R"({{"{}": 1}})", name), fmt::format("has \"{}\", which the", name));
  }
  for (const char* value : {"[1]", "3", "true", R"("a")"}) refused(value, "is ");
}

// It has no place for them.
TEST_F(DatasetTest, ThePlainFormatRefusesVariables) {
  const auto record = [](const char* kwargs) {
    return fmt::format(R"({{"prompt": "q", "completion": "a", "chat_template_kwargs": {}}})",
                       kwargs);
  };
  const DatasetOptions plain = options(100, "plain");
  EXPECT_EQ(read("a.jsonl", record("{}"), plain).size(), 1);
  expect_error(ErrorKind::data,
               "a.jsonl:1: the plain format has no variables, \"enable_thinking\" for one | leave "
               "chat_template_kwargs out",
               [&] { read("a.jsonl", record(R"({"enable_thinking": false})"), plain); });
}

// Text that the program would read under another name, or of another kind of record.
TEST_F(DatasetTest, TextsThatAreNotReadAreWarnedOf) {
  using Texts = std::vector<std::string>;
  const std::string turns = R"("messages": [{"role": "user", "content": "q"},
                                            {"role": "assistant", "content": "a"}])";
  const std::string question = R"("instruction": "q", "output": "a")";
  const std::string pair = R"("prompt": "q", "completion": "a")";
  DatasetOptions o = options(1000);
  const auto warned = [&](const std::string& record) {
    std::string line;
    for (const char c : "{" + record + "}\n") line += c == '\n' ? ' ' : c;
    return data_warnings(read("a.jsonl", line + "\n" + line, o).stats());
  };
  const auto of = [](const std::string& key, const std::string& options) {
    return Texts{"2 records have " + key + ", which is not read; " + options + " reads it"};
  };
  for (const std::string& record : {turns, question, pair}) {
    for (const std::string key : {"system_prompt", "system_message"}) {
      const std::string beside = ", \"" + key + R"(": "s")";
      EXPECT_EQ(warned(record + beside), of(key, "field_system=" + key));
      EXPECT_EQ(warned(record + beside + R"(, "system": "t")"), Texts());
    }
    EXPECT_EQ(warned(record + R"(, "system_prompt": "", "id": "x")"), Texts());
  }
  EXPECT_EQ(warned(question + R"(, "context": "c")"), of("context", "field_input=context"));
  EXPECT_EQ(warned(question + R"(, "passage": "c", "input": "")"),
            of("passage", "field_input=passage"));
  EXPECT_EQ(warned(question + R"(, "context": "c", "input": "i")"), Texts());
  EXPECT_EQ(warned(question + R"(, "context": ["c"])"), Texts());
  const std::string as_question = "field_instruction=prompt field_output=completion";
  EXPECT_EQ(warned(pair + R"(, "input": "i")"), of("input", as_question));
  EXPECT_EQ(warned(pair + R"(, "history": [["a", "b"]])"), of("history", as_question));
  EXPECT_EQ(warned(pair + R"(, "history": "null")"), Texts());
  EXPECT_EQ(warned(turns + R"(, "input": "i", "context": "c", "history": [["a", "b"]])"), Texts());
  EXPECT_EQ(warned(R"("text": "t", "system_prompt": "s")"), Texts());
  o.examples.fields = {.instruction = "prompt", .output = "completion"};
  EXPECT_EQ(warned(pair + R"(, "input": "i")"), Texts());
  o.examples.fields = {.input = "context"};
  EXPECT_EQ(warned(question + R"(, "context": "c", "passage": "p")"), Texts());
}

// TRL's explicit prompt: the answers alone would be learned.
TEST(Messages, NamedAnswersKeepTheirQuestion) {
  RecordFields fields;
  fields.messages = "chosen";
  const auto parse = [&](const std::string& members) {
    return parse_record("{" + members + R"(, "rejected": []})", "a.jsonl:1", fields);
  };
  const auto refusal = [&](const std::string& members) {
    return error_of(ErrorKind::data, [&] { parse(members); });
  };
  const std::string answers = R"(, "chosen": [{"role": "assistant", "content": "a"}])";
  const std::string what =
      "a.jsonl:1: \"chosen\" has no question, and \"prompt\", which may be it, is not read | ";
  EXPECT_EQ(refusal(R"("prompt": [{"role": "user", "content": "q"}])" + answers),
            what + "call chosen completion in the file, and leave field_messages out");
  EXPECT_EQ(refusal(R"("prompt": "q")" + answers),
            what +
                "write prompt and chosen as one list, called messages, in the file, and leave "
                "field_messages out");
  // Where nothing is lost.
  const std::string whole = R"(, "chosen": [{"from": "human", "value": "q"}])";
  for (const std::string& members :
       {R"("prompt": [])" + answers, R"("id": 1)" + answers, R"("prompt": "q")" + whole}) {
    const Record record = parse(members);
    EXPECT_EQ(std::get<ConversationRecord>(record).messages.size(), 1u) << members;
  }
  fields.system = "prompt";
  EXPECT_EQ(std::get<ConversationRecord>(parse(R"("prompt": "q")" + answers)).messages.size(), 2u);
}

// A hint that can be followed, and loses no question.
TEST(Messages, HintsForPreferences) {
  const auto hint = [](const std::string& members) {
    const auto error = error_of(ErrorKind::data, [&] {
      parse_record("{" + members + R"(, "rejected": {}})", "a.jsonl:1");
    });
    const std::string text = hint_of(error);
    return text.substr(text.find(", ") + 2);
  };
  const std::string of_gpt = R"("chosen": {"from": "gpt", "value": "a"})";
  const std::string answers = R"("chosen": [{"role": "assistant", "content": "a"}])";
  const std::string turns = R"("conversations": [{"from": "human", "value": "q"}], )";
  const std::string append =
      "append chosen to conversations in the file, and set field_messages=conversations";
  EXPECT_EQ(hint(turns + of_gpt), append);
  EXPECT_EQ(hint(turns + answers), append);
  EXPECT_EQ(hint(turns + R"("chosen": "a")"), append);
  const std::string one_list = "write prompt and chosen as one list, called messages, in the file";
  EXPECT_EQ(hint(R"("prompt": "q", )" + of_gpt), one_list);
  EXPECT_EQ(hint(R"("prompt": "q", )" + answers), one_list);
  EXPECT_EQ(hint(of_gpt), "write chosen as one list, called messages, in the file");
  EXPECT_EQ(hint(R"("prompt": [{"role": "user", "content": "q"}], )" + of_gpt),
            "append chosen to prompt in the file, and set field_messages=prompt");
  EXPECT_EQ(hint(R"("prompt": [{"role": "user", "content": "q"}], )" + answers),
            "call them completion in the file");
  EXPECT_EQ(hint(answers), "set field_messages=chosen");
  EXPECT_EQ(hint(R"("prompt": "q", "chosen": [{"from": "human", "value": "q"}])"),
            "set field_messages=chosen");
  // What the first one leads to.
  RecordFields fields;
  fields.messages = "conversations";
  const Record record = parse_record(
      R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
          "chosen": {"from": "gpt", "value": "a"}, "rejected": {}})",
      "a.jsonl:1", fields);
  EXPECT_EQ(std::get<ConversationRecord>(record).messages.size(), 2u);
}

}  // namespace
}  // namespace jackscrew
