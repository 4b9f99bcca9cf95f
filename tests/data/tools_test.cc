// Records with tools, their calls and whatever else a message holds, as a chat template sees them.
#include <gtest/gtest.h>

#include "tests/data/dataset_fixture.h"
#include "tests/text/jinja/fixture.h"

namespace jackscrew {
namespace {

using jinja::named_format;
using jinja::own_format;
using Json = nlohmann::ordered_json;

std::string rendered(const ChatFormat& format, const ConversationRecord& record,
                     bool answer_follows = false) {
  std::string text;
  for (const Segment& segment :
       render_chat(format, record.messages, answer_follows, record.tools).segments) {
    text += segment.text;
  }
  return text;
}

ConversationRecord parse(const Json& record) {
  return std::get<ConversationRecord>(parse_record(record.dump(), "a.jsonl:1"));
}

void refuse_record(const char* record, const std::string& part) {
  expect_error(ErrorKind::data, part, [&] { parse_record(record, "a.jsonl:1"); });
}

// Whether a record can say it: other roles and variables are of no data set.
bool is_record(const Json& conversation) {
  for (const auto& [name, value] : conversation["variables"].items()) {
    if (name != "tools" && name != "add_generation_prompt") return false;
  }
  for (const Json& message : conversation["messages"]) {
    const bool calls = message.contains("tool_calls");
    const Json& content = message["content"];
    if (!content.is_string() && !(content.is_null() && calls)) return false;
    if (message["role"] == "critic") return false;
  }
  return !conversation["messages"].empty();
}

TEST(Tools, RecordsAreRenderedAsTransformersRendersThem) {
  const Json golden = jinja::template_golden();
  const auto templates = jinja::all_templates();
  int with_tools = 0;
  int with_calls = 0;
  for (const auto& [name, results] : golden["templates"].items()) {
    const ChatFormat format = own_format(templates.at(name));
    for (size_t i = 0; i < results.size(); ++i) {
      const Json& conversation = golden["conversations"][i];
      if (!is_record(conversation) || !results[i].contains("text")) continue;
      SCOPED_TRACE(name + ": " + conversation["name"].get<std::string>());
      const Json& variables = conversation["variables"];
      Json record = {{"messages", conversation["messages"]}};
      if (variables.contains("tools")) record["tools"] = variables["tools"];
      const bool follows = variables.value("add_generation_prompt", false);
      const std::string expected = results[i]["text"].get<std::string>();
      EXPECT_EQ(rendered(format, parse(record), follows), expected);
      // The same as ShareGPT and OpenAI write it: JSON within texts.
      if (variables.contains("tools")) record["tools"] = variables["tools"].dump();
      for (Json& message : record["messages"]) {
        if (!message.contains("tool_calls")) continue;
        ++with_calls;
        for (Json& call : message["tool_calls"]) {
          call["function"]["arguments"] = call["function"]["arguments"].dump();
        }
      }
      EXPECT_EQ(rendered(format, parse(record), follows), expected);
      with_tools += variables.contains("tools") ? 1 : 0;
    }
  }
  EXPECT_GE(with_tools, 8);
  EXPECT_GE(with_calls, 4);
}

TEST(Tools, BesideAnInstructionOrAPrompt) {
  for (const char* record : {R"({"tools": [{"name": "now"}], "instruction": "q", "output": "a"})",
                             R"({"tools": [{"name": "now"}], "prompt": "q", "completion": "a"})"}) {
    EXPECT_EQ(rendered(own_format("{{ tools[0].name }}{% for m in messages %} {{ m.content }}"
                                  "{% endfor %}"),
                       parse(Json::parse(record))),
              "now q a");
  }
}

TEST(Tools, OfShareGpt) {
  const ConversationRecord record = parse(Json::parse(R"({"tools": "[{\"name\": \"now\"}]",
    "conversations": [
      {"from": "human", "value": "When?"},
      {"from": "function_call", "value": "{\"name\": \"now\", \"arguments\": {\"zone\": 1}}"},
      {"from": "observation", "value": "noon"}, {"from": "gpt", "value": "Now."}]})"));
  EXPECT_EQ(record.messages[1].role, "assistant");
  const std::string text =
      rendered(own_format("{% for m in messages %}{{ m.role }}: {{ m.content }}"
                          "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}|{% endfor %}"
                          "{{ tools | tojson }}"),
               record);
  EXPECT_EQ(text,
            "user: When?|"
            "assistant: None[{\"type\": \"function\", \"function\": {\"name\": \"now\", "
            "\"arguments\": {\"zone\": 1}}}]|"
            "tool: noon|assistant: Now.|[{\"name\": \"now\"}]");
}

// As OpenAI wrote them before there were tools: a call is a member of its message, and its result
// is of the role "function".
TEST(Tools, OfOldFunctionCalls) {
  const ConversationRecord record = parse(Json::parse(R"({"messages": [
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": null,
       "function_call": {"name": "now", "arguments": "{\"zone\": \"UTC\"}"}, "tool_calls": null},
      {"role": "function", "name": "now", "content": "12"},
      {"role": "assistant", "content": "a", "function_call": null}]})"));
  EXPECT_EQ(record.messages[1].fields.size(), 1u);
  EXPECT_EQ(
      rendered(own_format("{% for m in messages %}{{ m.role }} {% for c in m.tool_calls or [] %}"
                          "{{ c.type }} {{ c.function.name }} {{ c.function.arguments.zone }} "
                          "{% endfor %}{% endfor %}"),
               record),
      "user assistant function now UTC tool assistant ");
}

// Llama 3.1's word for "tool", which a template sees if it knows it.
TEST(Tools, OfIpython) {
  const auto record = [](const char* role) {
    return parse({{"messages",
                   {{{"role", "user"}, {"content", "q"}},
                    {{"role", role}, {"content", "12"}},
                    {{"role", "assistant"}, {"content", "a"}}}}});
  };
  const ConversationRecord ipython = record("ipython");
  const std::string roles = "{% for m in messages %}{{ m.role }} {% endfor %}";
  EXPECT_EQ(rendered(own_format(roles), ipython), "user tool assistant ");
  EXPECT_EQ(rendered(own_format(roles + "{{ 'ipython' == messages[1].role }}"), ipython),
            "user ipython assistant True");
  const auto templates = jinja::all_templates();
  for (const char* name : {"chatml_think", "chatml_tools", "headers_tools", "inst_tools"}) {
    const ChatFormat format = own_format(templates.at(name));
    EXPECT_EQ(rendered(format, ipython), rendered(format, record("tool"))) << name;
  }
}

// Tables and ShareGPT's files hold them as texts of JSON: the whole list, or each of it.
TEST(Tools, MayBeTextsOfJson) {
  const ChatFormat format = own_format(
      "{{ tools | tojson }}{% for m in messages if m.tool_calls %} {{ m.tool_calls | tojson }}"
      "{% endfor %}");
  const std::string tool = R"({"name": "f", "parameters": {}})";
  const std::string call = R"({"function": {"name": "f", "arguments": {"x": 1}}})";
  const auto of = [&](const Json& tools, const Json& calls) {
    return rendered(format,
                    parse({{"tools", tools},
                           {"messages",
                            {{{"role", "user"}, {"content", "q"}},
                             {{"role", "assistant"}, {"content", "a"}, {"tool_calls", calls}}}}}));
  };
  const std::string expected = "[" + tool + "] [" + call + "]";
  EXPECT_EQ(of(Json::array({Json::parse(tool)}), Json::array({Json::parse(call)})), expected);
  EXPECT_EQ(of("[" + tool + "]", "[" + call + "]"), expected);
  EXPECT_EQ(of(Json::array({tool}), Json::array({call})), expected);
  Json texts = Json::parse(call);
  texts["function"]["arguments"] = R"({"x": 1})";
  texts["function"] = texts["function"].dump();
  EXPECT_EQ(of(Json::array({tool}), Json::array({texts}).dump()), expected);
  EXPECT_EQ(of("", ""), "null");
  EXPECT_EQ(of("null", "null"), "null");
  refuse_record(R"({"tools": ["f"], "messages": [{"role": "user", "content": "a"}]})",
                "a.jsonl:1: a tool of \"tools\" is string, expected an object");
  refuse_record(R"({"tools": [null], "messages": [{"role": "user", "content": "a"}]})",
                "a.jsonl:1: a tool of \"tools\" is null, expected an object");
  refuse_record(R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": "f"}]})",
                "a.jsonl:1, message 1: \"tool_calls\" is not a list");
}

// Content that is missing, null or empty is three things to a template, as in transformers.
TEST(Tools, MayComeWithoutContent) {
  const auto call = [](const std::string& content) {
    return std::get<ConversationRecord>(parse_record(
        R"({"messages": [{"role": "assistant", )" + content + R"("tool_calls": [{"name": "f"}]}]})",
        "a.jsonl:1"));
  };
  const ConversationRecord missing = call(""), null = call(R"("content": null, )"),
                           empty = call(R"("content": "", )");
  const ChatFormat asks = own_format(
      "{% for m in messages %}{{ 'content' in m }} {{ m.content is defined }} "
      "{{ m['content'] is none }} {{ m.content or 'nothing' }}{% endfor %}");
  EXPECT_EQ(rendered(asks, missing), "False False False nothing");
  EXPECT_EQ(rendered(asks, null), "True True True nothing");
  EXPECT_EQ(rendered(asks, empty), "True True False nothing");
  const ChatFormat joins = own_format("{{ messages[0].content + '' }}");
  EXPECT_EQ(rendered(joins, empty), "");
  for (const ConversationRecord& record : {missing, null}) {
    EXPECT_NE(hint_of(error_of(ErrorKind::model, [&] { rendered(joins, record); }))
                  .find("add \"content\": \"\" to it"),
              std::string::npos);
    for (const char* name : {"chatml", "llama2", "llama3", "mistral", "zephyr", "alpaca"}) {
      const ChatFormat format = named_format(name);
      EXPECT_EQ(rendered(format, record), rendered(format, empty)) << name;
    }
  }
}

TEST(Tools, PartsOfText) {
  const ConversationRecord record = parse(Json::parse(R"({"messages": [{"role": "user",
    "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]})"));
  EXPECT_EQ(record.messages[0].content, "one two");
  EXPECT_TRUE(record.messages[0].fields.empty());
  refuse_record(R"({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]})",
                "a.jsonl:1, message 1: \"content\" has a part that is not text | only text is");
  refuse_record(R"({"messages": [{"role": "user", "content": ["a", "b"]}]})",
                "\"content\" has a part that is not text | a part is an object with type and text");
}

TEST(Tools, WhatIsWrongIsNamed) {
  refuse_record(R"({"tools": 3, "messages": [{"role": "user", "content": "a"}]})",
                "a.jsonl:1: \"tools\" is not a list");
  refuse_record(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": 3}]})",
                "a.jsonl:1, message 1: \"tool_calls\" is not a list");
  refuse_record(R"({"messages": [{"role": "assistant", "tool_calls": ["x"]}]})",
                "a tool call is not an object");
  refuse_record(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": 1}]}]})",
                "the function of a tool call is not an object");
  refuse_record(R"({"messages": [{"role": "assistant", "content": null}]})", "\"content\" is null");
  refuse_record(R"({"messages": [{"role": "user", "content": "a", "x": 18446744073709551615}]})",
                "a.jsonl:1, message 1: the number 18446744073709551615 is too large");
  // The parser makes a float of it.
  refuse_record(R"({"messages": [{"role": "user", "content": "a", "x": 18446744073709551617}]})",
                "a.jsonl:1, message 1: the number 18446744073709551617 is too large");
  refuse_record(R"({"tools": "[{\"x\": -9223372036854775809}]",
                    "messages": [{"role": "user", "content": "a"}]})",
                "a.jsonl:1: the number -9223372036854775809 is too large");
}

// What is beside the messages no template sees.
TEST(Tools, NumbersMayBeLargeWhereNobodyReadsThem) {
  const ConversationRecord record =
      std::get<ConversationRecord>(parse_record(R"({"id": 18446744073709551617, "messages": [
                       {"role": "user", "content": "a", "x": 1.8446744073709552e19, "y": 1e3}]})",
                                                "a.jsonl:1"));
  EXPECT_EQ(rendered(own_format("{{ messages[0].x }} {{ messages[0].y }}"), record),
            "1.8446744073709552e+19 1000.0");
  refuse_record(R"({"text": 18446744073709551617})", "\"text\" is number, expected text");
}

// As transformers has them, but for role and content.
TEST(Tools, FieldsOfAMessageAreInTheOrderOfTheFile) {
  const ConversationRecord record = parse(Json::parse(R"({"messages": [{"name": "n",
      "role": "assistant", "tool_calls": [{"name": "f"}], "content": "a", "id": 1}]})"));
  EXPECT_EQ(rendered(own_format("{{ messages[0] | list | join(' ') }}"), record),
            "role content name tool_calls id");
}

TEST(Tools, AreNotLostWithoutAWord) {
  const ConversationRecord record = parse(Json::parse(
      R"({"tools": [{"name": "now"}], "messages": [{"role": "user", "content": "a"}]})"));
  const ChatFormat plain = chat_format("plain", {}, {});
  expect_error(ErrorKind::data, "does not support tools",
               [&] { render_chat(plain, record.messages, false, record.tools); });
  const ChatFormat without = own_format("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_TRUE(render_chat(without, record.messages, false, record.tools).unused_tools);
  EXPECT_FALSE(render_chat(without, record.messages).unused_tools);
  const ChatFormat with = own_format("{{ tools | tojson }}");
  EXPECT_FALSE(render_chat(with, record.messages, false, record.tools).unused_tools);
  const ConversationRecord called = parse(Json::parse(
      R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "now"}]}]})"));
  EXPECT_TRUE(render_chat(without, called.messages).unused_tools);
  EXPECT_FALSE(render_chat(own_format("{{ messages[0]['tool_calls'] | tojson }}"), called.messages)
                   .unused_tools);
  // An empty list is one to a template, as in transformers, and nothing that could be lost.
  const ConversationRecord none =
      parse(Json::parse(R"({"tools": [], "messages": [{"role": "user", "content": "a"}]})"));
  EXPECT_EQ(rendered(own_format("{{ tools }}"), none), "[]");
  EXPECT_FALSE(render_chat(without, none.messages, false, none.tools).unused_tools);
  EXPECT_EQ(rendered(named_format("plain"), none), "a\n\n");
  // So is an empty list of calls, which some exporters write into every message.
  const ConversationRecord uncalled = parse(Json::parse(
      R"({"messages": [{"role": "user", "content": "q", "tool_calls": []},
                       {"role": "assistant", "content": "a", "tool_calls": []}]})"));
  EXPECT_EQ(rendered(own_format("{{ messages[1].tool_calls }}"), uncalled), "[]");
  EXPECT_FALSE(render_chat(without, uncalled.messages).unused_tools);
  EXPECT_EQ(rendered(named_format("plain"), uncalled), "q\n\na</s>");
  refuse_record(R"({"messages": [{"role": "assistant", "tool_calls": []}]})",
                "\"content\" is missing");
  refuse_record(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]})",
                "\"content\" is null");
}

// An empty list is nothing that the plain format has no place for.
TEST_F(DatasetTest, APromptWithAnEmptyListOfToolsIsJoined) {
  const auto example = [&](const std::string& beside, const DatasetOptions& o) {
    const std::string pair = R"({"prompt": "Q:", "completion": " A")";
    return read("a.jsonl", pair + beside + "}", o).example(0);
  };
  const DatasetOptions plain = options(100, "plain");
  DatasetOptions with_tools = options(100);
  with_tools.examples.format.tools =
      own_format("{{ tools is none }}{% for m in messages %}{{ m.content }}{% endfor %}").general;
  const std::string without = decode(example("", with_tools));
  EXPECT_TRUE(without.starts_with("<|im_start|>user\nQ:")) << without;
  for (const char* none : {R"(, "tools": [])", R"(, "tools": "[]")"}) {
    EXPECT_EQ(example(none, plain).ids, example("", plain).ids) << none;
    EXPECT_EQ(decode(example(none, with_tools)), "FalseQ: A") << none;
  }
}

// Nor is what else a message holds; and of a call that is not written an empty answer would be
// left.
TEST(Tools, OthersThanTheTemplateWritesAreCounted) {
  const auto notes = [](const std::string& of_template, const std::string& fields) {
    ExampleOptions options;
    options.format = of_template == "plain" ? chat_format("plain", smollm_tokenizer().data(), {})
                                            : own_format(of_template);
    const std::string message = R"({"messages": [{"role": "assistant", )" + fields + "}]}";
    return encode_record(smollm_tokenizer(), options, parse_record(message, "a.jsonl:1"), "a")
        .notes;
  };
  const std::string content = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const std::string all =
      content + "{{ messages[0].reasoning_content }}{{ messages[0].tool_calls }}";
  const std::string thought = R"("content": "yo", "reasoning_content": "think")";
  EXPECT_EQ(notes(content, thought).unused_thoughts, 1);
  EXPECT_EQ(notes("plain", thought).unused_thoughts, 1);
  EXPECT_EQ(notes(content, R"("content": "yo", "thinking": "think")").unused_thoughts, 1);
  EXPECT_EQ(notes(content, R"("content": "yo", "reasoning_content": null)").unused_thoughts, 0);
  EXPECT_EQ(notes(all, thought).unused_thoughts, 0);
  EXPECT_EQ(notes(content, thought).empty, 0);
  const std::string call = R"("content": "", "tool_calls": [{"name": "f"}])";
  EXPECT_EQ(notes(content, call).empty, 1);
  EXPECT_EQ(notes(content, call + R"(, "weight": 0)").empty, 0);
  EXPECT_EQ(notes(all, call).empty, 0);
  DatasetStats stats;
  stats.notes = notes(content, thought);
  stats.notes += stats.notes;
  EXPECT_EQ(std::ranges::count(data_warnings(stats),
                               "2 conversations with what a model thought (reasoning_content), "
                               "which the chat template ignores"),
            1);
}

// Qwen 3's template writes thoughts, empty ones too, before the last answer; before earlier ones
// since the last question where they are not empty.
TEST(Tools, CallsAreTrainedWithThoughts) {
  ExampleOptions options;
  options.format = own_format(jinja::all_templates().at("chatml_think"));
  const auto notes = [&](const std::string& thoughts, const std::string& question) {
    const std::string record =
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, )" +
        thoughts + R"("tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, )" + question +
        R"({"role": "tool", "content": "42"}, {"role": "assistant", "content": "a"}]})";
    return encode_record(smollm_tokenizer(), options, parse_record(record, "a.jsonl:1"), "a").notes;
  };
  const RecordNotes without = notes("", "");
  EXPECT_EQ(without.untrainable, 1);
  EXPECT_EQ(without.thoughtless, 1);
  EXPECT_EQ(notes(R"("reasoning_content": "", )", "").thoughtless, 1);
  EXPECT_EQ(notes(R"("reasoning_content": "th", )", "").untrainable, 0);
  DatasetStats stats;
  stats.notes = without;
  EXPECT_EQ(data_warnings(stats).at(0),
            "1 answer cannot be trained on: the chat template does not write it as its generation "
            "prompt begins it, changes it once the conversation continues, or has it outside of "
            "{% generation %}; with a reasoning_content beside its content it can");
  stats.notes += without;
  stats.notes.untrainable = 3;
  EXPECT_TRUE(data_warnings(stats).at(0).ends_with(
      "; with a reasoning_content beside their content 2 of them can"));
  // Of turns before the last question the thoughts are left out.
  const RecordNotes earlier = notes("", R"({"role": "user", "content": "and?"}, )");
  EXPECT_EQ(earlier.untrainable, 1);
  EXPECT_EQ(earlier.thoughtless, 0);
}

// Arguments that are nested deeper than a template can take, in whatever it wraps them.
TEST_F(DatasetTest, CallsThatAreTooDeepAreBad) {
  const auto record = [](size_t levels) {
    std::string arguments;
    for (size_t i = 1; i < levels; ++i) arguments += R"({"a": )";
    arguments += "{}" + std::string(levels - 1, '}');
    return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", )"
           R"("content": "yes", "tool_calls": [{"function": {"name": "f", "arguments": )" +
           Json(arguments).dump() + "}}]}]}";
  };
  const std::string good = record(1);
  DatasetOptions o = options(1000);
  o.examples.format = own_format(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}"
      "{% endfor %}{% endfor %}");
  EXPECT_EQ(read("a.jsonl", good + "\n" + record(93), o).stats().examples, 2);
  for (const size_t levels : {94u, 95u, 96u, 97u, 98u}) {
    SCOPED_TRACE(levels);
    const std::string text = good + "\n" + record(levels);
    o.skip_bad_records = false;
    expect_error(ErrorKind::data, "a.jsonl:2, message 2: JSON nested more than ",
                 [&] { read("a.jsonl", text, o); });
    o.skip_bad_records = true;
    const DatasetStats stats = read("a.jsonl", text, o).stats();
    EXPECT_EQ(stats.bad, 1);
    EXPECT_EQ(stats.examples, 1);
  }
}

// What a template takes to be there is missing in a record: that is the record's fault. What no
// record could mend is the template's.
TEST_F(DatasetTest, RecordsThatDoNotFitTheTemplateAreBad) {
  const auto record = [](const std::string& question) {
    return R"({"messages": [{"role": "user", "content": ")" + question +
           R"("}, {"role": "assistant", "content": "yes"}]})";
  };
  const std::string text = record("a|b") + "\n" + record("a");
  DatasetOptions o = options(1000);
  o.examples.format = own_format(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content.split('|')[1].strip() }}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}");
  const auto reads = [&] { return read("a.jsonl", text, o).stats(); };
  const std::string complaint = "a.jsonl:2: chat template, line 1: a list has no \"1\"";
  expect_error(ErrorKind::data, complaint + " | on_bad_record=skip leaves such records out", reads);
  o.skip_bad_records = true;
  const DatasetStats stats = reads();
  EXPECT_EQ(stats.bad, 1);
  EXPECT_EQ(stats.examples, 1);
  EXPECT_TRUE(stats.first_bad.ends_with(complaint)) << stats.first_bad;
  for (const auto& [always, part] :
       {std::pair("{{ cycler(1) }}", "cycler is not supported"),
        std::pair("{{ range(10000000000) }}", "range: more than"),
        std::pair("{{ messages[0].content.format(1) }}", "\"format\" of a str is not supported")}) {
    o.examples.format = own_format(always);
    expect_error(ErrorKind::model, part, reads);
  }
}

}  // namespace
}  // namespace jackscrew
