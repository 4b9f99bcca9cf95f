#include "base/json_object.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace jackscrew {

namespace {

std::string quoted_text(std::string_view text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

template <typename T>
std::string number_text(T value) {
  return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
}

}  // namespace

JsonObject& JsonObject::add(std::string_view name, double value) {
  return add_raw(name, number_text(value));
}

JsonObject& JsonObject::add(std::string_view name, float value) {
  return add_raw(name, number_text(value));
}

JsonObject& JsonObject::add(std::string_view name, std::string_view value) {
  return add_raw(name, quoted_text(value));
}

JsonObject& JsonObject::add(std::string_view name, const JsonObject& value) {
  return add_raw(name, value.text());
}

JsonObject& JsonObject::add(std::string_view name, std::span<const std::string> values) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ", ") + quoted_text(value);
  return add_raw(name, "[" + list + "]");
}

JsonObject& JsonObject::merge(const JsonObject& other) {
  if (!body_.empty() && !other.body_.empty()) body_ += ", ";
  body_ += other.body_;
  return *this;
}

JsonObject& JsonObject::add_raw(std::string_view name, std::string_view json) {
  if (!body_.empty()) body_ += ", ";
  body_ += quoted_text(name);
  body_ += ": ";
  body_ += json;
  return *this;
}

std::optional<std::string> nul_complaint(std::string_view text) {
  const size_t at = text.find('\0');
  if (at == std::string_view::npos) return std::nullopt;
  return fmt::format("byte {} of the text is 0", at + 1);
}

std::string json_complaint(std::string_view what, bool one_line) {
  if (const size_t end = what.find("] "); what.starts_with('[') && end != what.npos) {
    what.remove_prefix(end + 2);
  }
  constexpr std::string_view kLine = "parse error at line 1, ";
  if (one_line && what.starts_with(kLine)) what.remove_prefix(kLine.size());
  return std::string(what);
}

}  // namespace jackscrew
