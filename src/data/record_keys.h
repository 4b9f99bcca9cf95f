// The keys of a record: what is at them, and what would read a record whose keys are others.
#pragma once

#include <initializer_list>
#include <set>
#include <string>

#include "data/json_tree.h"
#include "data/record_fields.h"
#include "data/records.h"

namespace jackscrew {

// The keys of a record by which its kind is read, whether it has them or not.
using KeysRead = std::set<std::string>;

// "its keys are a, b".
std::string keys_of(const RecordJson& object);

// The first of `names` that a record has; empty where it has none.
std::string first_of(const RecordJson& object, std::initializer_list<const char*> names);

// The name of a field that was given, or else the key by which it is known.
std::string key_or(const std::string& given, const char* known);

// The texts beside a conversation or pair that are not read and could be, 1 for each: "context,
// which is not read; field_input=context reads it". `has_system`: the record's own system prompt is
// read; `is_pair`: it is a prompt and its completion, two texts.
RecordCounts unread_texts(const RecordJson& object, const RecordFields& fields,
                          const KeysRead& read, bool has_system, bool is_pair);

// Says which records are understood and, as far as can be guessed, which options would make this
// one readable.
std::string fields_hint(const RecordJson& object);

// The string at `key`, which must be there. Throws Error(data), with `hint` where it is missing and
// no other key is near to it.
std::string required(const RecordJson& object, const std::string& key, const std::string& place,
                     const char* hint = nullptr);

// The string at `key`; empty where it is missing or null. Throws Error(data) for anything else.
std::string text_or_empty(const RecordJson& object, const std::string& key,
                          const std::string& place);

}  // namespace jackscrew
