// Makes records from JSON, for every reader.
#pragma once

#include <string>
#include <string_view>

#include "data/json_tree.h"
#include "data/records.h"

namespace jackscrew {

// The keys by which a record is recognised, as a hint.
inline constexpr const char* kRecordKeys =
    "a record has messages, conversations, instruction and output, prompt and completion, or text";

// Throws Error(data).
[[noreturn]] void fail_record(const std::string& place, const std::string& what,
                              const std::string& hint = kRecordKeys);

// Parses JSON; `one_line`: messages need not name its lines. Throws Error(data) with that hint for
// invalid JSON, and as parse_json_tree() does.
RecordJson parse_record_json(std::string_view text, const std::string& place,
                             const std::string& hint, bool one_line);

// Throws Error(data) naming the place and what was expected.
ParsedRecord to_record(const RecordJson& object, const std::string& place,
                       const RecordFields& fields);
// The record in a line of JSON. Throws Error(data).
ParsedRecord parse_line(std::string_view json, const std::string& place,
                        const RecordFields& fields);

}  // namespace jackscrew
