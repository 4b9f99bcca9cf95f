#include "data/record_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json_object.h"
#include "base/text.h"
#include "data/record_keys.h"
#include "data/record_refusals.h"
#include "data/record_tools.h"

namespace jackscrew {

namespace {

constexpr const char* kMessageKeys =
    "a message has role and content, or from and value; message_field_role and "
    "message_field_content name other keys";

std::string role_of(const std::string& name, const std::string& place) {
  static constexpr std::pair<std::string_view, const char*> kRoles[] = {
      {"system", "system"},     {"user", "user"},       {"assistant", "assistant"},
      {"tool", "tool"},         {"human", "user"},      {"gpt", "assistant"},
      {"chatgpt", "assistant"}, {"model", "assistant"}, {"developer", "system"},
      {"observation", "tool"},  {"function", "tool"},   {"function_call", "assistant"},
      {"ipython", "ipython"}};
  for (const auto& [alias, role] : kRoles) {
    if (alias == name) return role;
  }
  std::vector<std::string> names;
  for (const auto& [alias, role] : kRoles) names.emplace_back(alias);
  const auto nearest = nearest_name(name, names);
  const std::string hint = nearest ? fmt::format("did you mean \"{}\"?", *nearest)
                                   : fmt::format("known roles: {}", fmt::join(names, ", "));
  throw Error(ErrorKind::data, fmt::format("{}: unknown role \"{}\"", place, name), hint);
}

// What is true or false at `key`; nullopt where that is anything else.
std::optional<bool> boolean_at(const RecordJson& item, const char* key) {
  const RecordJson* found = member(item, key);
  return found != nullptr && found->is_boolean() ? std::optional(found->get<bool>()) : std::nullopt;
}

// The flag of a message, or of a part of one: OpenAI's `weight` (0 or 1), axolotl's `train` (true
// or false), or `loss`, as XTuner and ms-swift call it; a `loss` of another type is a measure.
std::optional<bool> own_flag(const RecordJson& item, const std::string& place) {
  for (const char* foreign : {"training", "trainable", "mask", "masked"}) {
    if (!boolean_at(item, foreign)) continue;
    fail_record(place, fmt::format("\"{}\" is a flag that is not read", foreign),
                "what is read is train: false, which keeps an answer out of the loss");
  }
  if (const RecordJson* train = member(item, "train")) {
    if (!train->is_boolean()) fail_record(place, "\"train\" is not true or false");
    return train->get<bool>();
  }
  if (const RecordJson* weight = member(item, "weight")) {
    if (*weight != 0 && *weight != 1) fail_record(place, "\"weight\" is not 0 or 1");
    return *weight == 1;
  }
  return boolean_at(item, "loss");
}

// Refuses what is no answer and marked as learned.
void refuse_learned(const RecordJson& message, const std::string& place) {
  for (const char* key : {"train", "loss"}) {
    if (!boolean_at(message, key).value_or(false)) continue;
    fail_record(place, fmt::format("\"{}\" is true in a message that is not an answer", key),
                fmt::format("leave {} out of it: answers are learned, or all messages with "
                            "train_on_inputs=true",
                            key));
  }
}

constexpr const char* kPartTrained =
    "a part of a message cannot be kept out of the loss; set train or weight for the message as a "
    "whole, and leave them out of its parts";

// Whether an answer is learned. Flags of its parts go before its own, and must say one thing.
bool trained_flag(const RecordJson& answer, const std::string& content_key,
                  const std::string& place) {
  if (const RecordJson* detail = member(answer, "train_detail"); detail && !detail->empty()) {
    fail_record(place, "\"train_detail\" tells parts of a message apart", kPartTrained);
  }
  const bool whole = own_flag(answer, place).value_or(true);
  const RecordJson* parts = member(answer, content_key);
  if (parts == nullptr || !parts->is_array()) return whole;
  std::optional<bool> trained;
  for (const RecordJson& part : *parts) {
    if (!part.is_object()) continue;
    const bool flag = own_flag(part, place).value_or(whole);
    if (trained.value_or(flag) != flag) {
      fail_record(place, "some parts of the message are to be learned, others are not",
                  kPartTrained);
    }
    trained = flag;
  }
  return trained.value_or(whole);
}

// Refuses a part of a content that has no text.
[[noreturn]] void refuse_part(const RecordJson& part, const std::string& key,
                              const std::string& place) {
  const RecordJson* type = part.is_object() ? member(part, "type") : nullptr;
  if (type != nullptr && *type == "text") {
    fail_record(place, fmt::format("\"{}\" has a part without its text; {}", key, keys_of(part)),
                "the text of a part is called text");
  }
  fail_record(place, fmt::format("\"{}\" has a part that is not text", key),
              part.is_object()
                  ? kOnlyText
                  : "a part is an object with type and text, or the content is one text");
}

// The text of a message's content, which may be a list of parts; nullopt where it is null or
// missing beside tool calls.
std::optional<std::string> content_of(const RecordJson& message, const std::string& key,
                                      bool has_calls, const std::string& place) {
  const RecordJson* found = member(message, key);
  if (found == nullptr && has_calls) return std::nullopt;
  if (found == nullptr || !found->is_array()) return required(message, key, place, kMessageKeys);
  std::string text;
  for (const RecordJson& part : *found) {
    if (!part.is_object() || member(part, "text") == nullptr) refuse_part(part, key, place);
    text += required(part, "text", place);
  }
  return text;
}

Message to_message(const RecordJson& item, const std::string& role_key,
                   const std::string& content_key, const std::string& place) {
  const std::string role = required(item, role_key, place, kMessageKeys);
  Message message{role_of(role, place), {}};
  if (message.role != "assistant") refuse_learned(item, place);
  const bool is_answer = message.role == "assistant" && role != "function_call";
  message.trained =
      is_answer ? trained_flag(item, content_key, place) : own_flag(item, place).value_or(true);
  RecordJson calls;
  bool is_old_call = false;  // as OpenAI wrote it before there were tools
  if (role == "function_call") {
    const RecordJson call = unquoted(item.value(content_key, RecordJson()), place);
    calls = RecordJson::array();
    for (const RecordJson& one : call.is_array() ? call : RecordJson::array({call})) {
      calls.push_back({{"type", "function"}, {"function", one}});
    }
  } else if (const RecordJson* found = json_member(item, "tool_calls")) {
    calls = *found;
  } else if (const RecordJson* call = member(item, "function_call"); call && call->is_object()) {
    calls = RecordJson::array({{{"type", "function"}, {"function", *call}}});
    is_old_call = true;
  }
  const bool has_calls = !calls.is_null();
  if (has_calls) calls = calls_of(calls, place);
  const auto content = role == "function_call"
                           ? std::nullopt
                           : content_of(item, content_key, has_calls && !calls.empty(), place);
  if (content) {
    message.content = *content;
  } else {
    const bool is_null = role == "function_call" || item.contains(content_key);
    message.kind = is_null ? MessageContent::none : MessageContent::absent;
  }
  const auto add_calls = [&] {
    message.fields.emplace_back("tool_calls", template_value(calls, place));
  };
  for (const auto& [key, value] : item.items()) {
    const bool known = key == role_key || key == content_key || key == "role" || key == "content" ||
                       key == "tool_calls" || key == "train" || key == "weight" ||
                       (key == "loss" && value.is_boolean()) ||
                       (is_old_call && key == "function_call");
    if (!known && !value.is_null()) {
      message.fields.emplace_back(key, template_value(value, place));
    }
    if (key == "tool_calls" && has_calls) add_calls();
  }
  if (has_calls && !item.contains("tool_calls")) add_calls();
  return message;
}

// Appends the messages of a list. Each has the keys that `fields` names, or OpenAI's, or
// ShareGPT's, whatever the list is called.
void add_messages(const RecordJson& record, const std::string& key, const RecordFields& fields,
                  const std::string& place, std::vector<Message>& messages) {
  const RecordJson* list = member(record, key);
  RecordJson of_text;  // a field of a .csv is text
  if (list != nullptr && list->is_string()) {
    of_text = unquoted(*list, place);
    list = &of_text;
  }
  if (list == nullptr || !list->is_array()) {
    fail_record(place, fmt::format("\"{}\" is not a list of messages", key));
  }
  if (list->empty()) fail_record(place, fmt::format("\"{}\" holds no message", key));
  for (const RecordJson& item : *list) {
    const std::string item_place = fmt::format("{}, message {}", place, messages.size() + 1);
    if (!item.is_object()) fail_record(item_place, "an object was expected");
    const bool share_gpt = member(item, "role") == nullptr &&
                           (member(item, "from") != nullptr || member(item, "value") != nullptr);
    const auto named = [&](const std::string& name, const char* share_gpt_name,
                           const char* name_else) {
      return !name.empty() ? name : std::string(share_gpt ? share_gpt_name : name_else);
    };
    messages.push_back(to_message(item, named(fields.role, "from", "role"),
                                  named(fields.content, "value", "content"), item_place));
  }
}

// Adds a system prompt that is beside the messages rather than among them.
void add_system(const RecordJson& record, const RecordFields& fields, const std::string& place,
                std::vector<Message>& messages) {
  const std::string key = key_or(fields.system, "system");
  if (member(record, key) == nullptr) return;
  std::string system = content_of(record, key, false, place).value_or("");
  if (system.empty()) return;
  if (!messages.empty() && messages.front().role == "system") {
    if (messages.front().content == system) return;
    fail_record(place, fmt::format("\"{}\" and the first message are two system prompts", key),
                "leave one of them in the record");
  }
  messages.insert(messages.begin(), Message{"system", std::move(system)});
}

// Adds earlier questions and answers: LLaMA-Factory's `history`.
void add_history(const RecordJson& record, const std::string& place,
                 std::vector<Message>& messages) {
  const RecordJson* found = json_member(record, "history");
  if (found == nullptr) return;
  const RecordJson history = unquoted(*found, place);
  const auto is_turn = [](const RecordJson& turn) {
    return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
  };
  if (!history.is_array() || !std::all_of(history.begin(), history.end(), is_turn)) {
    fail_record(
        place, "\"history\" is not a list of questions with their answers",
        "it looks like [[\"a question\", \"its answer\"]]; rename keys that mean something else");
  }
  for (const RecordJson& turn : history) {
    messages.push_back({"user", turn[0].get<std::string>()});
    messages.push_back({"assistant", turn[1].get<std::string>()});
  }
}

// What every kind of conversation has beside its messages; add_system() adds its system prompt.
ConversationRecord begin_conversation(const RecordJson& record, const RecordFields& fields,
                                      const std::string& place, KeysRead& read) {
  const std::string tools = key_or(fields.tools, "tools");
  read.insert({tools, key_or(fields.system, "system")});
  ConversationRecord out;
  out.tools = tools_of(record, tools, place);
  out.variables = variables_of(record, place);
  return out;
}

ConversationRecord conversation(const RecordJson& record, const std::string& key,
                                const RecordFields& fields, const std::string& place,
                                KeysRead& read) {
  read.insert(key);
  ConversationRecord out = begin_conversation(record, fields, place, read);
  // As OpenAI wrote them before there were tools.
  if (fields.tools.empty() && !out.tools.truth() && json_member(record, "functions") != nullptr) {
    out.tools = functions_of(record, place);
  }
  add_messages(record, key, fields, place, out.messages);
  add_system(record, fields, place, out.messages);
  return out;
}

ConversationRecord instruction(const RecordJson& record, const RecordFields& fields,
                               const std::string& place, KeysRead& read) {
  const std::string instruction_key = key_or(fields.instruction, "instruction");
  const std::string input_key = key_or(fields.input, "input");
  const std::string output_key = key_or(fields.output, "output");
  read.insert({instruction_key, input_key, output_key, "history"});
  std::string question = required(record, instruction_key, place);
  // Where `input` is the question itself, or its answer, it is nothing beside them.
  if (input_key != instruction_key && input_key != output_key) {
    const std::string input = text_or_empty(record, input_key, place);
    if (!input.empty()) question += (question.empty() ? "" : "\n\n") + input;
  }
  ConversationRecord out = begin_conversation(record, fields, place, read);
  add_history(record, place, out.messages);
  out.messages.push_back({"user", std::move(question)});
  out.messages.push_back({"assistant", required(record, output_key, place)});
  add_system(record, fields, place, out.messages);
  return out;
}

// Whether the text at `key` spells a list of messages, as in a .csv. What begins otherwise is not
// parsed: it may be JSON beyond the limits of records, and a text all the same.
bool spells_messages(const RecordJson& record, const std::string& key, const RecordFields& fields,
                     const std::string& place) {
  const RecordJson* value = member(record, key);
  if (value == nullptr || !value->is_string()) return false;
  const std::string& text = value->get_ref<const std::string&>();
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos || text[begin] != '[') return false;
  const RecordJson list = unquoted(*value, place);
  const auto is_message = [&](const RecordJson& item) {
    return item.is_object() &&
           (item.contains(key_or(fields.role, "role")) || item.contains("from"));
  };
  return list.is_array() && !list.empty() && std::all_of(list.begin(), list.end(), is_message);
}

// Two texts, or TRL's two lists of messages, of which the first is context only: `prompt`, and what
// is at `answer`.
Record completion(const RecordJson& record, const std::string& answer, const RecordFields& fields,
                  const std::string& place, KeysRead& read) {
  read.insert({"prompt", answer});
  ConversationRecord out = begin_conversation(record, fields, place, read);
  const auto spells = [&](const std::string& key) {
    return spells_messages(record, key, fields, place);
  };
  if (record["prompt"].is_array() || (spells("prompt") && spells(answer))) {
    add_messages(record, "prompt", fields, place, out.messages);
    for (Message& message : out.messages) message.trained = false;
    add_messages(record, answer, fields, place, out.messages);
    add_system(record, fields, place, out.messages);
  } else {
    CompletionRecord pair{required(record, "prompt", place), required(record, answer, place),
                          out.tools};
    out.messages = {{"user", pair.prompt}, {"assistant", pair.completion}};
    add_system(record, fields, place, out.messages);
    if (out.messages.size() == 2 && !out.tools.truth() && out.variables.empty()) return pair;
  }
  return out;
}

Record text_at(const RecordJson& object, const std::string& key, const std::string& place,
               KeysRead& read) {
  read.insert(key);
  return TextRecord{required(object, key, place)};
}

Record record_of(const RecordJson& object, const std::string& place, const RecordFields& fields,
                 KeysRead& read) {
  if (!object.is_object()) {
    fail_record(place, fmt::format("an object was expected, found {}", kind_name(object)));
  }
  const auto has = [&](const std::string& key) { return member(object, key) != nullptr; };
  // Names that the user has set take precedence over the known ones.
  if (!fields.messages.empty() && has(fields.messages)) {
    ConversationRecord chat = conversation(object, fields.messages, fields, place, read);
    refuse_answers_alone(object, fields.messages, chat.messages, read, place);
    return chat;
  }
  const bool own_pair = !fields.instruction.empty() || !fields.output.empty();
  if (own_pair && has(key_or(fields.instruction, "instruction"))) {
    // Who names both keys has chosen what to learn.
    if (fields.instruction.empty()) refuse_marked(object, fields, place);
    return instruction(object, fields, place, read);
  }
  const bool own_answer = !fields.output.empty() && fields.output != "prompt" && has(fields.output);
  if (own_answer && has("prompt")) {
    refuse_marked(object, fields, place);
    return completion(object, fields.output, fields, place, read);
  }
  if (!fields.text.empty() && has(fields.text)) return text_at(object, fields.text, place, read);
  const bool has_list = has("messages") || has("conversations");
  const bool has_pair = has("instruction") || (has("prompt") && has("completion"));
  if (has_list || has_pair) refuse_marked(object, fields, place);
  if (has("messages")) return conversation(object, "messages", fields, place, read);
  if (has("chosen") && has("rejected")) refuse_preferences(object, place);
  if (has("conversations")) return conversation(object, "conversations", fields, place, read);
  if (has("instruction")) {
    refuse_two_kinds(object, fields, place);
    return instruction(object, fields, place, read);
  }
  if (has("prompt")) return completion(object, "completion", fields, place, read);
  if (object.contains("text")) return text_at(object, "text", place, read);
  fail_record(place, fmt::format("nothing to train on: {}", keys_of(object)), fields_hint(object));
}

}  // namespace

void fail_record(const std::string& place, const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::data, fmt::format("{}: {}", place, one_line(what)), hint);
}

RecordJson parse_record_json(std::string_view text, const std::string& place,
                             const std::string& hint, bool one_line) {
  std::string complaint;
  auto value = parse_json_tree(text, place, complaint);
  if (!value) {
    fail_record(place, fmt::format("not valid JSON: {}", json_complaint(complaint, one_line)),
                hint);
  }
  return std::move(*value);
}

ParsedRecord to_record(const RecordJson& object, const std::string& place,
                       const RecordFields& fields) {
  KeysRead read;
  ParsedRecord parsed{record_of(object, place, fields, read)};
  refuse_unread_names(object, fields, read, place);
  if (!std::holds_alternative<TextRecord>(parsed.record)) {
    refuse_media(object, read, place);
    const auto* chat = std::get_if<ConversationRecord>(&parsed.record);
    const bool has_system = chat != nullptr && chat->messages.front().role == "system";
    parsed.unread = unread_texts(object, fields, read, has_system, chat == nullptr);
  }
  for (const auto& [option, field] : kRecordFields) {
    const std::string& name = fields.*field;
    if (name.empty()) continue;
    parsed.named[fmt::format("{}={}", option, name)] = object.contains(name) ? 1 : 0;
  }
  return parsed;
}

ParsedRecord parse_line(std::string_view json, const std::string& place,
                        const RecordFields& fields) {
  constexpr const char* kHint =
      "every line holds one JSON object; a file with an array of records is named .json";
  // As `jq .` and indent= of Python write objects.
  const size_t begin = json.find_first_not_of(" \t\r");
  const bool opens = begin != json.npos && json[begin] == '{';
  if (opens && is_blank(json.substr(begin + 1))) {
    fail_record(place, "the object goes on over several lines",
                "write each object on one line, as `jq -c .` does, or all of them as one array, "
                "[{...}, {...}], in a .json file");
  }
  const RecordJson object = parse_record_json(json, place, kHint, true);
  if (object.is_array()) fail_record(place, "an object was expected, found array", kHint);
  return to_record(object, place, fields);
}

Record parse_record(std::string_view json, const std::string& place, const RecordFields& fields) {
  return parse_line(json, place, fields).record;
}

}  // namespace jackscrew
