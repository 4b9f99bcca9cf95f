#include "data/record_tools.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "data/record_json.h"
#include "text/chat/chat_template.h"
#include "text/jinja/json.h"

namespace jackscrew {

namespace {

// The words of a schema below which schemas stand by names of their own: of parameters, say.
constexpr std::string_view kSchemasByName[] = {"properties", "patternProperties", "$defs",
                                               "definitions", "dependentSchemas"};

// Removes what tables write where a row lacks what others have. Of a schema the words `default` and
// `const` may mean null, and what is in values is nobody's key. `by_name`: keys are such names.
void drop_nulls(RecordJson& schema, bool by_name = false) {
  if (schema.is_array()) {
    for (RecordJson& item : schema) drop_nulls(item);
  }
  if (!schema.is_object()) return;
  RecordJson kept = RecordJson::object();
  for (const auto& [key, value] : schema.items()) {
    const bool is_value = !by_name && (key == "default" || key == "const");
    const bool is_values = !by_name && (key == "enum" || key == "examples");
    const bool holds_names = !by_name && std::ranges::count(kSchemasByName, key) > 0;
    if (value.is_null() && !is_value) continue;
    if (!is_value && !is_values) drop_nulls(value, holds_names);
    kept[key] = std::move(value);
  }
  schema = std::move(kept);
}

// Removes what is null of a call or of its function, but for the arguments, which may be meant so.
void drop_null_members(RecordJson& object) {
  RecordJson kept = RecordJson::object();
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null() || key == "arguments") kept[key] = std::move(value);
  }
  object = std::move(kept);
}

// The list of objects at `key`; null where there is none.
RecordJson tool_list(const RecordJson& record, const std::string& key, const std::string& place) {
  const RecordJson* found = json_member(record, key);
  if (found == nullptr) return {};
  RecordJson tools = unquoted(*found, place);
  if (!tools.is_array()) fail_record(place, fmt::format("\"{}\" is not a list", key));
  for (RecordJson& tool : tools) {
    tool = unquoted(tool, place);
    if (!tool.is_object()) {
      fail_record(place,
                  fmt::format("a tool of \"{}\" is {}, expected an object", key, kind_name(tool)),
                  "a tool has a name, a description and parameters, as OpenAI writes it");
    }
    drop_nulls(tool);
  }
  return tools;
}

}  // namespace

jinja::Value template_value(const RecordJson& json, const std::string& place) {
  // Around a message's field there are the message, the list of messages, and what a template
  // makes of that: `loop` for one.
  constexpr int kMost = jinja::kMaxDepth - 4;
  try {
    jinja::Value value = jinja::from_json(json);
    if (value.depth() > kMost) {
      fail(ErrorKind::data, "JSON nested more than {} deep, which a template may see", kMost);
    }
    return value;
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", place, error.what()), error.hint());
  }
}

jinja::Value tools_of(const RecordJson& record, const std::string& key, const std::string& place) {
  const RecordJson tools = tool_list(record, key, place);
  return tools.is_null() ? jinja::None{} : template_value(tools, place);
}

jinja::Value functions_of(const RecordJson& record, const std::string& place) {
  RecordJson tools = tool_list(record, "functions", place);
  if (tools.is_null()) return jinja::None{};
  for (RecordJson& tool : tools) {
    if (tool.contains("function")) continue;
    RecordJson function = std::move(tool);
    tool = {{"type", "function"}, {"function", std::move(function)}};
  }
  return template_value(tools, place);
}

jinja::Variables variables_of(const RecordJson& record, const std::string& place) {
  constexpr const char* kKey = "chat_template_kwargs";
  const RecordJson* found = json_member(record, kKey);
  if (found == nullptr) return {};
  const RecordJson object = unquoted(*found, place);
  if (!object.is_object()) {
    fail_record(place, fmt::format("\"{}\" is {}, expected an object", kKey, kind_name(object)),
                "its members are variables of the chat template, as {\"enable_thinking\": false}");
  }
  jinja::Variables variables;
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (is_own_variable(name)) {
      fail_record(place, fmt::format("\"{}\" has \"{}\", which the program sets", kKey, name),
                  "leave it out; messages, tools and special tokens have places of their own");
    }
    variables.emplace_back(name, template_value(value, place));
  }
  return variables;
}

RecordJson calls_of(const RecordJson& list, const std::string& place) {
  RecordJson calls = unquoted(list, place);
  if (!calls.is_array()) fail_record(place, "\"tool_calls\" is not a list");
  for (RecordJson& call : calls) {
    call = unquoted(call, place);
    if (!call.is_object()) fail_record(place, "a tool call is not an object");
    drop_null_members(call);
    if (call.contains("function")) call["function"] = unquoted(call["function"], place);
    RecordJson& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object()) fail_record(place, "the function of a tool call is not an object");
    drop_null_members(function);
    if (function.contains("arguments")) {
      function["arguments"] = unquoted(function["arguments"], place);
    }
  }
  return calls;
}

}  // namespace jackscrew
