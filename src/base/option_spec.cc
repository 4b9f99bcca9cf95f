#include "base/option_spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace jackscrew {

namespace {

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool in_range(const OptionSpec& spec, double value) {
  return std::isfinite(value) && value >= spec.min && value <= spec.max;
}

}  // namespace

std::string canonical_name(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::vector<std::string> split_words(std::string_view text) {
  if (text.empty()) return {};
  return split(text, ' ');
}

bool has_name(std::string_view names, std::string_view name) {
  return contains(split_words(canonical_name(names)), canonical_name(name));
}

bool is_choice(const OptionSpec& spec, std::string_view text) {
  return contains(split_words(spec.choices), text);
}

bool is_valid_item(const OptionSpec& spec, std::string_view text) {
  if (is_choice(spec, text)) return true;
  const bool is_free = *spec.choices == '\0';
  switch (spec.type) {
    case OptionType::text:
      return is_free;
    case OptionType::list:
      return is_free && !text.empty();
    case OptionType::integer: {
      const auto value = parse_int(text);
      return value && in_range(spec, static_cast<double>(*value));
    }
    case OptionType::number: {
      const auto value = parse_double(text);
      return value && in_range(spec, *value);
    }
    case OptionType::boolean:
      return parse_bool(text).has_value();
    case OptionType::bytes: {
      const auto value = parse_bytes(text);
      return value && in_range(spec, static_cast<double>(*value));
    }
  }
  return false;
}

std::string expected_value(const OptionSpec& spec) {
  const auto choices = split_words(spec.choices);
  const std::string allowed = fmt::format("{}", fmt::join(choices, ", "));
  std::string what;
  switch (spec.type) {
    case OptionType::text:
      return choices.empty() ? "text" : "one of " + allowed;
    case OptionType::list:
      return choices.empty() ? "a list such as [a, b]" : "a list of " + allowed;
    case OptionType::integer:
      what = "a whole number";
      break;
    case OptionType::number:
      what = "a number";
      break;
    case OptionType::boolean:
      what = "true or false";
      break;
    case OptionType::bytes:
      // Its limits are in bytes, which nobody writes.
      return choices.empty() ? "a size such as 16GiB" : "a size such as 16GiB, or " + allowed;
  }
  if (std::isfinite(spec.min) && std::isfinite(spec.max)) {
    what += fmt::format(" from {} to {}", spec.min, spec.max);
  } else if (std::isfinite(spec.min)) {
    what += fmt::format(" of at least {}", spec.min);
  } else if (std::isfinite(spec.max)) {
    what += fmt::format(" of at most {}", spec.max);
  }
  if (!choices.empty()) what += ", or " + allowed;
  return what;
}

void refuse_value(const OptionSpec& spec, std::string_view text, std::string_view origin,
                  const char* explanation) {
  const auto choices = split_words(spec.choices);
  const auto bare = parse_double(text);
  // A number is not misspelt.
  const auto nearest = bare ? std::nullopt : nearest_name(text, choices);
  std::string hint = nearest ? fmt::format("did you mean {}?", *nearest) : std::string();
  if (spec.type == OptionType::bytes && bare) {
    // Nobody has 64 TiB, and nobody wants less than 64 KiB.
    constexpr double kLeastBytes = 65536.0;
    const std::string with_unit = fmt::format("{}{}", text, *bare < kLeastBytes ? "GiB" : "B");
    hint = is_valid_item(spec, with_unit)
               ? fmt::format("write the unit: {}={}", spec.name, with_unit)
               : fmt::format("leave it out, or write a size: {}=16GiB", spec.name);
  }
  if (spec.type == OptionType::number && text.find(',') != std::string_view::npos) {
    std::string with_point(text);
    with_point[text.find(',')] = '.';
    if (is_valid_item(spec, with_point)) {
      hint = fmt::format("write a decimal point: {}={}", spec.name, with_point);
    }
  }
  if (explanation != nullptr) hint = explanation;
  const bool is_bounded = spec.max < 0x1p63;  // then the error says by what
  if (spec.type == OptionType::integer && bare && *bare >= 0x1p63 && !is_bounded) {
    hint = fmt::format("the largest is {}", std::numeric_limits<int64_t>::max());
  }
  const bool is_foreign = explanation != nullptr && is_valid_item(spec, text);
  // Then the hint says all, and a list of choices would only hide it.
  const bool differs_by_case =
      explanation == nullptr && nearest && lower_case(*nearest) == lower_case(text);
  const std::string why = is_foreign        ? "a value of other programs"
                          : differs_by_case ? "and capitals count"
                                            : "expected " + expected_value(spec);
  throw Error(ErrorKind::usage, fmt::format("{}: {} is \"{}\", {}", origin, spec.name, text, why),
              hint);
}

}  // namespace jackscrew
