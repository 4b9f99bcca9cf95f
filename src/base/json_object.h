// Builds a JSON object on one line, its members in the order in which they are added.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace jackscrew {

class JsonObject {
 public:
  // Names must differ from each other. NaN and infinity, which JSON cannot say, become null.
  // Floating numbers are written with as many digits as it takes to read the same value back. Text
  // that is not UTF-8 gets replacement characters.
  JsonObject& add(std::string_view name, double value);
  JsonObject& add(std::string_view name, float value);
  JsonObject& add(std::string_view name, std::string_view value);
  JsonObject& add(std::string_view name, const char* value) {
    return add(name, std::string_view(value));
  }
  JsonObject& add(std::string_view name, const JsonObject& value);
  JsonObject& add(std::string_view name, std::span<const std::string> values);
  template <std::integral T>
  JsonObject& add(std::string_view name, T value) {
    if constexpr (std::same_as<T, bool>) return add_raw(name, value ? "true" : "false");
    return add_raw(name, std::to_string(value));
  }

  // A value that is JSON already.
  JsonObject& add_json(std::string_view name, std::string_view json) { return add_raw(name, json); }

  // Adds all members of `other` behind the present ones.
  JsonObject& merge(const JsonObject& other);

  // The object whose body() is `body`.
  static JsonObject of_body(std::string body) {
    JsonObject object;
    object.body_ = std::move(body);
    return object;
  }
  const std::string& body() const { return body_; }
  bool empty() const { return body_.empty(); }
  std::string text() const { return "{" + body_ + "}"; }

 private:
  JsonObject& add_raw(std::string_view name, std::string_view json);

  std::string body_;  // between the braces
};

// The complaint about a byte of 0, which the JSON parser takes for the end of the text: what
// follows would be lost. nullopt where there is none.
std::optional<std::string> nul_complaint(std::string_view text);

// The JSON parser's complaint, taken from its what() without its own name and number, and without
// the line number if the text is known to be one line.
std::string json_complaint(std::string_view what, bool one_line = false);

}  // namespace jackscrew
