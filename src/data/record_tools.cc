#include "data/record_tools.h"

#include "base/error.h"
#include "data/record_json.h"
#include "text/jinja/json.h"

namespace jackscrew {

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
  const RecordJson* found = member(record, key);
  if (found == nullptr || *found == "") return jinja::None{};
  RecordJson tools = unquoted(*found, place);
  if (!tools.is_array()) fail_record(place, fmt::format("\"{}\" is not a list", key));
  for (RecordJson& tool : tools) {
    tool = unquoted(tool, place);
    if (tool.is_object()) continue;
    fail_record(place,
                fmt::format("a tool of \"{}\" is {}, expected an object", key, kind_name(tool)),
                "a tool has a name, a description and parameters, as OpenAI writes it");
  }
  return template_value(tools, place);
}

RecordJson calls_of(const RecordJson& list, const std::string& place) {
  RecordJson calls = unquoted(list, place);
  if (!calls.is_array()) fail_record(place, "\"tool_calls\" is not a list");
  for (RecordJson& call : calls) {
    call = unquoted(call, place);
    if (!call.is_object()) fail_record(place, "a tool call is not an object");
    if (call.contains("function")) call["function"] = unquoted(call["function"], place);
    RecordJson& function = call.contains("function") ? call["function"] : call;
    if (!function.is_object()) fail_record(place, "the function of a tool call is not an object");
    if (function.contains("arguments")) {
      function["arguments"] = unquoted(function["arguments"], place);
    }
  }
  return calls;
}

}  // namespace jackscrew
