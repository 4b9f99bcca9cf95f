#include "data/record_refusals.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/record_json.h"
#include "data/record_keys.h"

namespace jackscrew {

namespace {

// Whether a list of messages has a question.
bool has_question(const RecordJson& list) {
  return std::any_of(list.begin(), list.end(), [](const RecordJson& item) {
    if (!item.is_object()) return false;
    return item.value("role", RecordJson()) == "user" ||
           item.value("from", RecordJson()) == "human";
  });
}

// What makes the chosen answers of preference data readable, with what they answer.
std::string chosen_hint(const RecordJson& record) {
  const RecordJson& chosen = record["chosen"];
  const std::string question = first_of(record, {"prompt", "instruction", "question", "query"});
  const auto is_list = [&](const std::string& key) {
    return !key.empty() && member(record, key) != nullptr && record[key].is_array();
  };
  if (is_list(question) && chosen.is_array()) return "call them completion in the file";
  const bool is_whole = chosen.is_array() && has_question(chosen);
  for (const std::string& list : {std::string("conversations"), question}) {
    if (is_whole || !is_list(list)) continue;
    return fmt::format("append chosen to {0} in the file, and set field_messages={0}", list);
  }
  if (chosen.is_string()) {
    return question.empty() ? "set field_text=chosen"
                            : fmt::format("set field_instruction={} field_output=chosen", question);
  }
  if (is_whole || (chosen.is_array() && question.empty())) return "set field_messages=chosen";
  return fmt::format("write {}chosen as one list, called messages, in the file",
                     question.empty() ? "" : question + " and ");
}

}  // namespace

void refuse_preferences(const RecordJson& record, const std::string& place) {
  fail_record(
      place,
      "preference data (\"chosen\" and \"rejected\"); training on preferences, such as DPO, is not "
      "supported yet",
      fmt::format("to fine-tune on the chosen answers alone, {}", chosen_hint(record)));
}

void refuse_answers_alone(const RecordJson& record, const std::string& key,
                          const std::vector<Message>& messages, const KeysRead& read,
                          const std::string& place) {
  const RecordJson* prompt = member(record, "prompt");
  if (prompt == nullptr || !holds_something(*prompt) || read.contains("prompt")) return;
  const auto asks = [](const Message& message) { return message.role == "user"; };
  if (std::any_of(messages.begin(), messages.end(), asks)) return;
  const std::string together =
      prompt->is_array() ? fmt::format("call {} completion", key)
                         : fmt::format("write prompt and {} as one list, called messages,", key);
  fail_record(
      place,
      fmt::format("\"{}\" has no question, and \"prompt\", which may be it, is not read", key),
      together + " in the file, and leave field_messages out");
}

void refuse_marked(const RecordJson& record, const RecordFields& fields, const std::string& place) {
  for (const char* key : kMarks) {
    const RecordJson* mark = member(record, key);
    if (mark == nullptr || !mark->is_boolean() || fields.output == key) continue;
    fail_record(
        place,
        fmt::format("preference data (a \"{}\" of true or false); training on preferences, such "
                    "as KTO, is not supported yet",
                    key),
        fmt::format("to fine-tune on the good answers alone, keep the records whose {0} is true, "
                    "and leave {0} out of them",
                    key));
  }
}

void refuse_unread_names(const RecordJson& record, const RecordFields& fields, const KeysRead& read,
                         const std::string& place) {
  for (const auto& [option, field] : kRecordFields) {
    const std::string& name = fields.*field;
    if (name.empty() || read.contains(name)) continue;
    const RecordJson* found = json_member(record, name);
    // A number at a key that the user names was meant for something, too.
    if (found == nullptr || (found->is_structured() && !holds_something(*found))) continue;
    fail_record(
        place,
        fmt::format("\"{}\", which {} names, is not read of this kind of record", name, option),
        fmt::format("name its other keys too (field_instruction=KEY field_output=KEY make "
                    "it a question and its answer), or leave {} out",
                    option));
  }
}

void refuse_media(const RecordJson& record, const KeysRead& read, const std::string& place) {
  for (const char* key : {"image", "images", "video", "videos", "audio", "audios"}) {
    const RecordJson* found = member(record, key);
    if (found == nullptr || read.contains(key) || !holds_something(*found)) continue;
    fail_record(place, fmt::format("\"{}\" holds what is not text", key),
                fmt::format("{}; where the text does not need it, leave {} out of the file",
                            kOnlyText, key));
  }
}

void refuse_two_kinds(const RecordJson& record, const RecordFields& fields,
                      const std::string& place) {
  const std::string answer = key_or(fields.output, "output");
  const auto has = [&](const std::string& key) { return record.contains(key); };
  if (has(answer) || !has("prompt") || !has("completion")) return;
  fail_record(place,
              fmt::format("\"instruction\" without \"{}\", beside \"prompt\" and \"completion\", "
                          "which are another kind of record",
                          answer),
              "leave instruction out of the file, or set field_instruction=prompt "
              "field_output=completion");
}

}  // namespace jackscrew
