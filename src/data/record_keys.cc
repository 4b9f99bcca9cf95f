#include "data/record_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/text.h"
#include "data/record_json.h"

namespace jackscrew {

namespace {

// What data sets call what the program reads as `input`, and as `system`.
constexpr auto kInputNames = {"input", "context", "passage"};
constexpr auto kSystemNames = {"system", "system_prompt", "system_message"};

// The same as first_of(), in whatever case a record writes each name.
std::string first_in_any_case(const RecordJson& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (member(object, name) != nullptr) return name;
    for (const auto& [key, value] : object.items()) {
      if (!value.is_null() && lower_case(key) == name) return key;
    }
  }
  return {};
}

// The options by which a question and its answer are read, with what stands beside them.
std::string pair_options(const RecordJson& object, const std::string& question,
                         const std::string& answer) {
  std::string set = fmt::format("field_instruction={} field_output={}", question, answer);
  const auto add = [&](const char* option, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const std::string key = first_in_any_case(object, {name});
      if (key.empty() || key == question || key == answer) continue;
      const bool is_read = key == *names.begin();
      if (!is_read) set += fmt::format(" {}={}", option, key);
      return;
    }
  };
  add("field_input", kInputNames);
  add("field_system", kSystemNames);
  return set;
}

// Which of a record's keys may be a slip for one that it lacks; empty where none is near.
std::string hint_of_slip(const RecordJson& object, const std::string& key) {
  std::vector<std::string> keys;
  for (const auto& [name, value] : object.items()) keys.push_back(name);
  const auto nearest = nearest_name(key, keys);
  return nearest ? fmt::format("is \"{}\" meant to be \"{}\"?", *nearest, key) : "";
}

// Whether a list has turns such as {"human": ..., "gpt": ...}: no option reads them.
bool has_roles_as_keys(const RecordJson& list) {
  if (!list.is_array() || list.empty() || !list[0].is_object()) return false;
  return !first_of(list[0], {"human", "user", "gpt", "assistant", "bot"}).empty();
}

}  // namespace

std::string keys_of(const RecordJson& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) {
    keys.push_back(value.is_null() ? key + " (null)" : key);
  }
  if (keys.empty()) return "it has no keys";
  // A record may have a key for each of its values: some are enough to recognise it.
  constexpr size_t kMost = 12;
  const bool all = keys.size() <= kMost;
  if (!all) keys.resize(kMost);
  return fmt::format("its {} {}{}", all && keys.size() == 1 ? "key is" : "keys are",
                     fmt::join(keys, ", "), all ? "" : " ...");
}

std::string first_of(const RecordJson& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (member(object, name) != nullptr) return name;
  }
  return {};
}

std::string key_or(const std::string& given, const char* known) {
  return given.empty() ? known : given;
}

RecordCounts unread_texts(const RecordJson& object, const RecordFields& fields,
                          const KeysRead& read, bool has_system, bool is_pair) {
  RecordCounts unread;
  const auto add = [&](const std::string& key, const std::string& options) {
    const RecordJson* found = json_member(object, key);
    if (found == nullptr || !holds_something(*found) || read.contains(key)) return;
    if (!found->is_string() && key != "history") return;  // the options would refuse it
    unread[fmt::format("{}, which is not read; {} reads it", key, options)] = 1;
  };
  if (!has_system && fields.system.empty()) {
    for (const std::string key : kSystemNames) add(key, "field_system=" + key);
  }
  if (read.contains(key_or(fields.instruction, "instruction"))) {
    const RecordJson* input = member(object, "input");
    const bool has_input = input != nullptr && holds_something(*input);
    if (has_input || !fields.input.empty()) return unread;
    for (const std::string key : kInputNames) add(key, "field_input=" + key);
  } else if (is_pair) {
    for (const char* key : {"input", "history"}) {
      add(key, "field_instruction=prompt field_output=" + key_or(fields.output, "completion"));
    }
  }
  return unread;
}

std::string fields_hint(const RecordJson& object) {
  const std::string list = first_in_any_case(
      object, {"conversation", "dialog", "dialogue", "chat", "turns", "messages", "conversations"});
  const std::string question = first_in_any_case(
      object, {"instruction", "prompt", "question", "query", "problem", "input", "user"});
  const std::string answer = first_in_any_case(
      object, {"output", "completion", "answer", "response", "solution", "target", "assistant"});
  std::string set = "field_instruction=KEY field_output=KEY, field_messages=KEY or field_text=KEY";
  if (!list.empty() && has_roles_as_keys(object[list])) {
    return fmt::format("{}; write each turn of {} as messages with role and content", kRecordKeys,
                       list);
  }
  const bool has_turns = !list.empty() && object[list].is_array() && !object[list].empty();
  const auto is_text = [&](const std::string& key) {
    return !key.empty() && object[key].is_string();
  };
  if (has_turns && object[list][0].is_object()) {
    set = "field_messages=" + list;
  } else if (is_text(question) && is_text(answer)) {
    set = pair_options(object, question, answer);
  } else if (const std::string text =
                 first_in_any_case(object, {"text", "content", "document", "body", "story"});
             is_text(text)) {
    set = "field_text=" + text;
  } else if (has_turns) {
    return fmt::format("{}; write each turn of {} as an object with role and content", kRecordKeys,
                       list);
  }
  return fmt::format("{}; to read other keys, set {}", kRecordKeys, set);
}

std::string required(const RecordJson& object, const std::string& key, const std::string& place,
                     const char* hint) {
  const auto found = object.find(key);
  if (found == object.end()) {
    const std::string slip = hint_of_slip(object, key);
    fail_record(place, fmt::format("\"{}\" is missing; {}", key, keys_of(object)),
                !slip.empty()     ? slip
                : hint != nullptr ? hint
                                  : fields_hint(object));
  }
  if (!found->is_string()) {
    fail_record(place, fmt::format("\"{}\" is {}, expected text", key, kind_name(*found)),
                found->is_null()         ? "write its text, or leave the record out"
                : found->is_structured() ? kRecordKeys
                                         : "write it in quotes");
  }
  return found->get<std::string>();
}

std::string text_or_empty(const RecordJson& object, const std::string& key,
                          const std::string& place) {
  return member(object, key) == nullptr ? std::string() : required(object, key, place);
}

}  // namespace jackscrew
