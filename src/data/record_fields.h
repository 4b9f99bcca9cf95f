// The names of a record's fields, for files that call them otherwise.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace jackscrew {

// Empty: not given. Records are then recognised by the keys of kRecordKeys; a name that is given,
// also one of those, goes before them.
struct RecordFields {
  std::string messages = {};     // a list of messages
  std::string instruction = {};  // a question; makes a record with `output`
  std::string input = {};        // context of the question; may be missing
  std::string output = {};       // its answer
  std::string system = {};       // beside any of them; may be missing
  std::string tools = {};        // the same
  std::string text = {};         // all that is trained
  // In each message; empty: OpenAI's `role` and `content`, or ShareGPT's `from` and `value`.
  std::string role = {}, content = {};

  bool operator==(const RecordFields&) const = default;
};

// Those of a record itself, rather than of its messages, by the options that give them.
struct RecordField {
  const char* option;
  std::string RecordFields::*name;
};
inline constexpr RecordField kRecordFields[] = {
    {"field_messages", &RecordFields::messages}, {"field_instruction", &RecordFields::instruction},
    {"field_input", &RecordFields::input},       {"field_output", &RecordFields::output},
    {"field_system", &RecordFields::system},     {"field_tools", &RecordFields::tools},
    {"field_text", &RecordFields::text}};

// Whether one of them is called so.
inline bool is_named_field(const RecordFields& fields, std::string_view key) {
  return std::ranges::any_of(kRecordFields,
                             [&](const RecordField& field) { return fields.*field.name == key; });
}

}  // namespace jackscrew
