// Filters for texts, numbers and values of any kind.
#include <charconv>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace jackscrew::jinja {

namespace {

Value trim(Runtime&, const Value& subject, const BoundArguments& arguments) {
  const bool any = arguments.has(0) && !arguments[0].is_none();
  return strip(to_text(subject), Side::both, any ? &arguments.text(0) : nullptr);
}

// Whether the filter `title` takes a character for the end of a word.
bool ends_word(uint32_t c) {
  constexpr std::string_view kSigns = "-({[<";
  return is_space(c) || (c < 0x80 && kSigns.find(static_cast<char>(c)) != kSigns.npos);
}

Value replace_filter(Runtime&, const Value& subject, const BoundArguments& arguments) {
  const bool counted = arguments.has(2) && !arguments[2].is_none();
  return replace(to_text(subject), to_text(arguments[0]), to_text(arguments[1]),
                 counted ? arguments.integer(2, -1) : -1);
}

Value indent(Runtime&, const Value& subject, const BoundArguments& arguments) {
  if (subject.defined().as_text() == nullptr) fail("indent of a {}", subject.type_name());
  Text indention;
  if (arguments.has(0) && arguments[0].as_text() != nullptr) {
    indention = arguments.text(0);
  } else {
    const Value space = Value::text(" ", kTemplate);
    indention = *apply(Binary::Operator::multiply, space, arguments.integer(0, 4)).as_text();
  }
  const bool first = arguments.flag(1, false);
  const bool blank = arguments.flag(2, false);
  Text text = *subject.as_text();
  text.append("\n", kTemplate);
  const Values lines = split_lines(text, false);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].as_text();
    if (i > 0) out.append("\n", kTemplate);
    if (i == 0 ? first : blank || !line.empty()) out.append(indention);
    out.append(line);
  }
  return out;
}

// A number's text as Python's int() and float() read it: without surrounding whitespace, a leading
// '+' or single underscores between digits.
std::string plain_number(const Text& text) {
  const Text stripped = strip(text, Side::both);
  const std::string_view view = stripped.view();
  const auto is_digit = [&](size_t i) {
    return i < view.size() && view[i] >= '0' && view[i] <= '9';
  };
  std::string out;
  for (size_t i = 0; i < view.size(); ++i) {
    if (view[i] == '_' && i > 0 && is_digit(i - 1) && is_digit(i + 1)) continue;
    if (i == 0 && view[i] == '+' && !view.substr(1).starts_with('-')) continue;
    out += view[i];
  }
  return out;
}

template <typename Number>
std::optional<Number> parse(const std::string& text) {
  Number number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ptr != text.data() + text.size() || text.empty()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) fail("the number {}", text);
  return parsed.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<double> to_float(const Value& value) {
  if (const auto integer = value.defined().as_integer()) return static_cast<double>(*integer);
  if (value.as_float() != nullptr) return *value.as_float();
  return value.as_text() == nullptr ? std::nullopt : parse<double>(plain_number(*value.as_text()));
}

Value int_filter(Runtime&, const Value& subject, const BoundArguments& arguments) {
  if (arguments.integer(1, 10) != 10) fault("int: a base other than 10");
  if (const auto integer = subject.as_integer()) return *integer;
  if (subject.as_text() != nullptr) {
    if (const auto number = parse<int64_t>(plain_number(*subject.as_text()))) return *number;
  }
  const auto number = to_float(subject);
  if (!number || !std::isfinite(*number)) return arguments.value(0, int64_t{0});
  if (std::fabs(*number) >= 0x1p63) fail("int of {}, which is too large", *number);
  return static_cast<int64_t>(*number);
}

Value float_filter(Runtime&, const Value& subject, const BoundArguments& arguments) {
  const auto number = to_float(subject);
  return number ? Value(*number) : arguments.value(0, 0.0);
}

Value round_filter(Runtime&, const Value& subject, const BoundArguments& arguments) {
  const int64_t precision = arguments.integer(0, 0);
  const std::string method = arguments.has(1) ? arguments.text(1).bytes() : "common";
  if (!subject.defined().is_number()) fail("round of a {}", subject.type_name());
  if (precision < 0 || precision > 15) fail("round to {} digits", precision);
  if (method == "common") {
    if (const auto integer = subject.as_integer()) return *integer;
    const double number = *subject.as_float();
    // The exact value is rounded to nearest even, as in Python.
    return std::isfinite(number) ? *parse<double>(fmt::format("{:.{}f}", number, precision))
                                 : number;
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double number = *to_float(subject) * scale;
  // Python's are integers, of which none is -0.
  if (method == "ceil") return (std::ceil(number) + 0.0) / scale;
  if (method == "floor") return (std::floor(number) + 0.0) / scale;
  fault("round: the method \"{}\"", method);
}

Value abs_filter(Runtime&, const Value& subject, const BoundArguments&) {
  if (subject.defined().as_float() != nullptr) return std::fabs(*subject.as_float());
  const auto integer = subject.as_integer();
  if (!integer) fail("abs of a {}", subject.type_name());
  return *integer < 0 ? apply(Unary::Operator::minus, *integer) : Value(*integer);
}

Value default_filter(Runtime&, const Value& subject, const BoundArguments& arguments) {
  const bool replaced = subject.is_undefined() || (arguments.flag(1, false) && !subject.truth());
  return replaced ? arguments.value(0, Text()) : subject;
}

Value tojson(Runtime&, const Value& subject, const BoundArguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.flag(0, false);
  style.sort_keys = arguments.flag(3, false);
  if (arguments.has(1) && !arguments[1].is_none()) {
    const bool is_text = arguments[1].as_text() != nullptr;
    const int64_t width = is_text ? 0 : arguments.integer(1, 0);
    if (width > 1000) fault("tojson: an indent of {}", width);
    style.indent = is_text ? arguments.text(1).bytes()
                           : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  if (arguments.has(2) && !arguments[2].is_none()) {
    const Values separators = to_values(arguments[2]);
    if (separators.size() != 2 || separators[0].as_text() == nullptr ||
        separators[1].as_text() == nullptr) {
      fault("tojson: separators are two texts");
    }
    style.item_separator = separators[0].as_text()->bytes();
    style.key_separator = separators[1].as_text()->bytes();
  }
  return Value::text(to_json(subject, style));
}

constexpr Filter kScalarFilters[] = {
    {"trim", "? chars", trim, nullptr},
    {"upper", "",
     [](Runtime&, const Value& v, const BoundArguments&) -> Value { return to_upper(to_text(v)); },
     nullptr},
    {"lower", "",
     [](Runtime&, const Value& v, const BoundArguments&) -> Value { return to_lower(to_text(v)); },
     nullptr},
    {"capitalize", "",
     [](Runtime&, const Value& v, const BoundArguments&) -> Value {
       return capitalize(to_text(v));
     },
     nullptr},
    {"title", "",
     [](Runtime&, const Value& v, const BoundArguments&) -> Value {
       return title(to_text(v), ends_word);
     },
     nullptr},
    {"replace", "old new ? count", replace_filter, nullptr},
    {"indent", "? width first blank", indent, nullptr},
    {"string", "",
     [](Runtime&, const Value& v, const BoundArguments&) -> Value { return to_text(v); }, nullptr},
    // Nothing is escaped, so that nothing needs to be kept from it.
    {"safe", "",
     [](Runtime&, const Value& v, const BoundArguments&) -> Value { return to_text(v); }, nullptr},
    {"int", "? default base", int_filter, nullptr},
    {"float", "? default", float_filter, nullptr},
    {"round", "? precision method", round_filter, nullptr},
    {"abs", "", abs_filter, nullptr},
    {"default", "? default_value boolean", default_filter, nullptr},
    {"d", "? default_value boolean", default_filter, nullptr},
    {"tojson", "? ensure_ascii indent separators sort_keys", tojson, nullptr},
};

}  // namespace

std::span<const Filter> scalar_filters() {
  return kScalarFilters;
}

}  // namespace jackscrew::jinja
