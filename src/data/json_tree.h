// JSON of records as a tree.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace jackscrew {

// Keys are in the order of the file. A whole number beyond 64 bits, which would be another number
// as a float, is binary: its digits.
using RecordJson = nlohmann::ordered_json;

// The most keys of an object: a tree finds each among all before it. Records have a few.
inline constexpr size_t kMostKeys = 10'000;

// The value that `text` is; nullopt, with the parser's complaint, where it is no JSON. Of equal
// keys the last one counts. Throws Error(data) naming `place` for values that are nested too deep
// and for objects of too many keys.
std::optional<RecordJson> parse_json_tree(std::string_view text, const std::string& place,
                                          std::string& complaint);

// The member `key` unless it is missing or null: tables exported as JSON write null for the fields
// that a row lacks.
const RecordJson* member(const RecordJson& object, const std::string& key);

// The same of a member that may be JSON within a text, unless that text says that there is nothing:
// empty, or `null`, as json.dumps() writes None into a .csv.
const RecordJson* json_member(const RecordJson& object, const std::string& key);

// Whether there is anything in a value: a table has empty texts and lists, and objects of nulls, in
// rows without.
bool holds_something(const RecordJson& value);

// The JSON value that a string spells, if it is an object or array; otherwise the value itself.
// Throws Error(data) where parse_json_tree() does.
RecordJson unquoted(const RecordJson& value, const std::string& place);

// "number", "string" ...
const char* kind_name(const RecordJson& value);

}  // namespace jackscrew
