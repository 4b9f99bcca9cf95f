#include "formats/json_text.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"

namespace jackscrew {

namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 32;

// Checks depth and keys, of two equal ones of which the parser itself keeps the last. Not as a
// callback of the parser, which would look through a whole array at the end of each of its objects.
class ParseGuard final : public nlohmann::json_sax<json> {
 public:
  explicit ParseGuard(const std::string& where) : where_(where) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }

  bool start_object(size_t) override { return open(); }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second) {
      fail(ErrorKind::model, "{}: \"{}\" appears twice", where_, name);
    }
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }

  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    fail(ErrorKind::model, "{}: not valid JSON: {}", where_, json_complaint(error.what()));
  }

 private:
  bool open() {
    if (keys_.size() >= kMaxDepth) {
      fail(ErrorKind::model, "{}: JSON nested deeper than {}", where_, kMaxDepth);
    }
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& where_;
  std::vector<std::set<std::string>> keys_;  // one set per open object or array
};

std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  if (const auto complaint = nul_complaint(text)) {
    fail(ErrorKind::model, "{}: not valid JSON: {}", where, *complaint);
  }
  ParseGuard guard(where);
  json::sax_parse(text, &guard);
  try {
    return json::parse(text);
  } catch (const json::exception& error) {  // of a mapped file that is cut short meanwhile
    fail(ErrorKind::model, "{}: not valid JSON: {}", where, error.what());
  }
}

std::string dump_json(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string with_checksum(JsonObject object) {
  const uint32_t crc = crc32c(object.text());
  return object.add(kChecksumMember, crc).text();
}

std::string without_checksum(std::string text) {
  text.resize(std::min(text.size(), text.rfind(fmt::format("\"{}\"", kChecksumMember))));
  const size_t end = text.find_last_not_of(", ");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text + "}";
}

JsonFields::JsonFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail(ErrorKind::model, "{}: not a JSON object", where_);
}

const json* JsonFields::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const json& JsonFields::require(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) fail(ErrorKind::model, "{}: \"{}\" is missing", where_, key);
  return *value;
}

void JsonFields::fail_type(const char* key, const char* expected) const {
  fail(ErrorKind::model, "{}: \"{}\" is not {}", where_, key, expected);
}

int64_t JsonFields::integer(const char* key, std::optional<int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const std::optional<int64_t> value = as_integer(require(key));
  if (!value) fail_type(key, "an integer");
  return *value;
}

double JsonFields::number(const char* key, std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const json& value = require(key);
  if (!value.is_number()) fail_type(key, "a number");
  return value.get<double>();
}

bool JsonFields::boolean(const char* key, std::optional<bool> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const json& value = require(key);
  if (!value.is_boolean()) fail_type(key, "true or false");
  return value.get<bool>();
}

std::string JsonFields::text(const char* key, std::optional<std::string> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const json& value = require(key);
  if (!value.is_string()) fail_type(key, "a string");
  return value.get<std::string>();
}

std::vector<int64_t> JsonFields::integers(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {integer(key)};
  std::vector<int64_t> out;
  for (const json& item : *value) {
    const std::optional<int64_t> number = as_integer(item);
    if (!number) fail_type(key, "a list of integers");
    out.push_back(*number);
  }
  return out;
}

std::vector<std::string> JsonFields::texts(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) fail_type(key, "a list of strings");
  std::vector<std::string> out;
  for (const json& item : *value) {
    if (!item.is_string()) fail_type(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

}  // namespace jackscrew
