// JSON from files: parsed with limits, and read by getters whose errors name file and key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_object.h"

namespace jackscrew {

// Throws Error(model) beginning with `where` when the text is not one JSON value, when an object
// has the same key twice, or when values nest deeper than 32.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// Returns the same text on every machine. Bytes that are not UTF-8 become U+FFFD. `indent` -1: one
// line.
std::string dump_json(const nlohmann::json& value, int indent = 2);

// The member for an object's own checksum: the CRC-32C of its text without that member.
inline constexpr const char* kChecksumMember = "crc32c";
// The object's text with its checksum as the last member.
std::string with_checksum(JsonObject object);
// The text of the object that with_checksum() was given; whatever follows its result is ignored.
std::string without_checksum(std::string text);

// Typed access to one object, which must outlive this. A null member counts as absent; an absent
// member without a fallback and a member of another type are Error(model) naming `where` and the
// key.
class JsonFields {
 public:
  // Throws Error(model) when `object` is not an object.
  JsonFields(const nlohmann::json& object, std::string where);

  bool has(const char* key) const { return find(key) != nullptr; }
  // Also where the member is null.
  bool contains(const char* key) const { return object_.contains(key); }
  // Null when the member is absent or null.
  const nlohmann::json* find(const char* key) const;
  int64_t integer(const char* key, std::optional<int64_t> fallback = {}) const;
  double number(const char* key, std::optional<double> fallback = {}) const;
  bool boolean(const char* key, std::optional<bool> fallback = {}) const;
  std::string text(const char* key, std::optional<std::string> fallback = {}) const;
  // A list of integers, or one integer. Empty when absent.
  std::vector<int64_t> integers(const char* key) const;
  // A list of strings. Empty when absent.
  std::vector<std::string> texts(const char* key) const;

  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& require(const char* key) const;
  [[noreturn]] void fail_type(const char* key, const char* expected) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace jackscrew
