// Prints values: Python's str(), repr() and json.dumps().
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/failure.h"
#include "text/jinja/value.h"

namespace jackscrew::jinja {

namespace {

// The shortest digits that read back as the same number, laid out as Python does: an exponent
// below 1e-4 and from 1e16 on.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(value);
  const bool plain = size == 0.0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(std::begin(buffer), std::end(buffer), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// The ranges beyond ASCII for which Python's str.isprintable() is false, Unicode's categories C and
// Z; code points that are merely unassigned are left out.
bool is_printable(uint32_t c) {
  struct Range {
    uint32_t first, last;
  };
  constexpr Range kHidden[] = {
      {0x00, 0x1F},       {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},
      {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},
      {0x8E2, 0x8E2},     {0x1680, 0x1680},   {0x180E, 0x180E},   {0x2000, 0x200F},
      {0x2028, 0x202F},   {0x205F, 0x206F},   {0x3000, 0x3000},   {0xD800, 0xF8FF},
      {0xFEFF, 0xFEFF},   {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD},
      {0x110CD, 0x110CD}, {0x13430, 0x13438}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
      {0xE0000, 0xE00FF}, {0xE01F0, 0x10FFFF}};
  return std::none_of(std::begin(kHidden), std::end(kHidden),
                      [&](const Range& range) { return c >= range.first && c <= range.last; });
}

void append_repr(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t i = 0; i < text.size(); i += character_size(text, i)) {
    const uint32_t c = code_point(text, i);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\' || c == static_cast<uint32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (is_printable(c)) {
      out += text.substr(i, character_size(text, i));
    } else {
      out += c < 0x100     ? fmt::format("\\x{:02x}", c)
             : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                           : fmt::format("\\U{:08x}", c);
    }
  }
  out += quote;
}

void append_repr(std::string& out, const Value& value) {
  if (out.size() > Text::kMaxBytes) Text::fail_too_long();
  if (const Text* text = value.as_text()) return append_repr(out, text->view());
  if (const Dict* dict = value.as_dict()) {
    out += '{';
    for (size_t i = 0; i < dict->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(out, dict->items[i].first);
      out += ": ";
      append_repr(out, dict->items[i].second);
    }
    out += '}';
    return;
  }
  const Sequence* sequence = value.as_sequence();
  const bool is_tuple = sequence != nullptr && sequence->kind == SequenceKind::tuple;
  if (is_tuple || value.is_list()) {
    out += is_tuple ? '(' : '[';
    for (size_t i = 0; i < sequence->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(out, sequence->items[i]);
    }
    if (is_tuple && sequence->items.size() == 1) out += ',';
    out += is_tuple ? ')' : ']';
    return;
  }
  if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (const bool* flag = value.as_bool()) {
    out += *flag ? "True" : "False";
  } else if (const int64_t* integer = value.as_int()) {
    out += std::to_string(*integer);
  } else if (const double* number = value.as_float()) {
    out += float_repr(*number);
  } else {
    fault("printing a {}", value.type_name());
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    if (out_.size() > Text::kMaxBytes) Text::fail_too_long();
    const Sequence* sequence = value.as_sequence();
    if (const Text* text = value.as_text()) {
      write_string(text->view());
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict);
    } else if (sequence != nullptr &&
               (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple)) {
      write_items('[', sequence->items, ']', [&](const Value& item) { write(item); });
    } else if (value.is_none() || value.is_number()) {
      out_ += scalar(value);
    } else {
      fail("tojson of a {}", value.type_name());
    }
  }

  std::string take() { return std::move(out_); }

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (const bool* flag = value.as_bool()) return *flag ? "true" : "false";
    if (const double* number = value.as_float(); number != nullptr && !std::isfinite(*number)) {
      return std::isnan(*number) ? "NaN" : *number < 0 ? "-Infinity" : "Infinity";
    }
    return repr(value);
  }

  void write_string(std::string_view text) {
    out_ += '"';
    for (size_t i = 0; i < text.size(); i += character_size(text, i)) {
      const uint32_t c = code_point(text, i);
      constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
      constexpr std::string_view kLetters = "\"\\nrtfb";
      if (const size_t at = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : kEscaped.npos;
          at != kEscaped.npos) {
        out_ += '\\';
        out_ += kLetters[at];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F)) {
        write_escaped(c);
      } else {
        out_ += text.substr(i, character_size(text, i));
      }
    }
    out_ += '"';
  }

  void write_escaped(uint32_t c) {
    if (c < 0x10000) {
      out_ += fmt::format("\\u{:04x}", c);
    } else {
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10),
                          0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }

  void write_key(const Value& key) {
    if (const Text* text = key.as_text()) {
      write_string(text->view());
    } else if (key.is_none() || key.is_number()) {
      write_string(scalar(key));
    } else {
      fail("tojson of a dict with a {} as a key", key.type_name());
    }
  }

  void write_dict(const Dict& dict) {
    auto items = dict.items;
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
        return compare(a.first, b.first, "<").value_or(0) < 0;
      });
    }
    write_items('{', items, '}', [&](const auto& item) {
      write_key(item.first);
      out_ += style_.key_separator;
      write(item.second);
    });
  }

  template <typename Items, typename WriteItem>
  void write_items(char open, const Items& items, char close, const WriteItem& write_item) {
    out_ += open;
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator.value_or(style_.indent ? "," : ", ");
      break_line();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) break_line();
    out_ += close;
  }

  void break_line() {
    if (!style_.indent) return;
    if (style_.indent->size() > Text::kMaxBytes / (kMaxDepth + 1)) fault("tojson: a wide indent");
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
    if (out_.size() > Text::kMaxBytes) Text::fail_too_long();
  }

  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

std::string repr(const Value& value) {
  std::string out;
  append_repr(out, value);
  return out;
}

Text to_text(const Value& value) {
  if (const Text* text = value.as_text()) return *text;
  if (value.is_undefined()) return {};
  return Text(repr(value), kContent);
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return writer.take();
}

}  // namespace jackscrew::jinja
