#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "text/jinja/failure.h"
#include "text/jinja/text.h"
#include "text/utf8.h"

namespace jackscrew::jinja {

namespace {

// Turns "\r\n" and "\r" into "\n", and drops one at the end of the template.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool in_base(char c, int base) {
  if (is_digit(c)) return c - '0' < base;
  return base == 16 && (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_and_tag();
    push(Token::Kind::end);
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  std::string_view rest(size_t from) const {
    return from < source_.size() ? std::string_view(source_).substr(from) : std::string_view();
  }
  std::string_view rest() const { return rest(at_); }

  [[noreturn]] void fail_here(const std::string& what) const { throw SyntaxFailure(line_, what); }

  Token& push(Kind kind, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    return tokens_.emplace_back(std::move(token));
  }

  void advance(size_t count) {
    const std::string_view passed = rest().substr(0, count);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    if (!passed.empty()) line_starting_ = passed.back() == '\n';
    at_ += passed.size();
  }

  // Pushes the text up to `end`, where a tag begins; `sign` is that tag's '-' or '+', or '\0'.
  void push_data(size_t end, char sign, bool strips_indent) {
    std::string_view text = rest().substr(0, end - at_);
    if (sign == '-') {
      text = text.substr(0, trimmed_end(text));
    } else if (sign != '+' && strips_indent) {
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      const bool at_line_start = begin > 0 || line_starting_;
      if (at_line_start && trimmed_end(text.substr(begin)) == 0) text = text.substr(0, begin);
    }
    if (!text.empty()) push(Kind::data, std::string(text));
    advance(end - at_);
  }

  static char sign_of(std::string_view after) {
    const char c = after.empty() ? '\0' : after.front();
    return c == '-' || c == '+' ? c : '\0';
  }

  // The length of a tag's end at `from`, "%}" or "-%}" with the whitespace that it swallows, or 0.
  // `close` is "%}", "}}" or "#}".
  size_t tag_end_size(size_t from, std::string_view close) const {
    const bool is_print = close == "}}";
    const std::string_view text = rest(from);
    if (text.starts_with('-') && text.substr(1).starts_with(close)) {
      return skip_spaces(source_, from + 1 + close.size()) - from;
    }
    if (!is_print && text.starts_with('+') && text.substr(1).starts_with(close)) {
      return 1 + close.size();
    }
    if (!text.starts_with(close)) return 0;
    const bool newline = !is_print && text.substr(close.size()).starts_with('\n');
    return close.size() + (newline ? 1 : 0);
  }

  // The length of "{% raw %}" at `from`, or 0.
  size_t raw_begin_size(size_t from) const {
    size_t i = from + 2;
    if (sign_of(rest(i)) != '\0') ++i;
    i = skip_spaces(source_, i);
    if (!rest(i).starts_with("raw")) return 0;
    i = skip_spaces(source_, i + 3);
    if (rest(i).starts_with("-%}")) return skip_spaces(source_, i + 3) - from;
    return rest(i).starts_with("%}") ? i + 2 - from : 0;
  }

  void text_and_tag() {
    size_t begin = at_;
    while (begin < source_.size()) {
      begin = source_.find('{', begin);
      if (begin == std::string::npos || begin + 1 == source_.size()) break;
      const char kind = source_[begin + 1];
      if (kind == '{' || kind == '%' || kind == '#') return tag(begin, kind);
      ++begin;
    }
    push_data(source_.size(), '+', false);
  }

  void tag(size_t begin, char kind) {
    const char sign = sign_of(rest(begin + 2));
    push_data(begin, sign, kind != '{');
    if (kind == '#') return comment(sign);
    if (const size_t raw = kind == '%' ? raw_begin_size(begin) : 0; raw > 0) {
      advance(raw);
      return raw_text();
    }
    push(kind == '{' ? Kind::print_begin : Kind::block_begin);
    advance(sign == '\0' ? 2 : 3);
    if (kind == '{') {
      expression("}}", Kind::print_end);
    } else {
      expression("%}", Kind::block_end);
    }
  }

  void comment(char sign) {
    for (size_t i = at_ + (sign == '\0' ? 2 : 3); i < source_.size(); ++i) {
      if (const size_t size = tag_end_size(i, "#}"); size > 0) return advance(i + size - at_);
    }
    fail_here("a comment {# that does not end");
  }

  void raw_text() {
    for (size_t begin = source_.find("{%", at_); begin != std::string::npos;
         begin = source_.find("{%", begin + 1)) {
      const char sign = sign_of(rest(begin + 2));
      size_t i = skip_spaces(source_, begin + (sign == '\0' ? 2 : 3));
      if (!rest(i).starts_with("endraw")) continue;
      i = skip_spaces(source_, i + 6);
      if (const size_t size = tag_end_size(i, "%}"); size > 0) {
        push_data(begin, sign, true);
        return advance(i + size - at_);
      }
    }
    fail_here("{% raw %} without {% endraw %}");
  }

  void expression(std::string_view close, Kind end_kind) {
    std::string open_brackets;
    const size_t first_token = tokens_.size();
    while (at_ < source_.size()) {
      if (open_brackets.empty()) {
        if (const size_t size = tag_end_size(at_, close); size > 0) {
          push(end_kind);
          return advance(size);
        }
      }
      if (const size_t next = skip_spaces(source_, at_); next > at_) {
        advance(next - at_);
        continue;
      }
      // A chain of operators becomes a tree as deep as the chain is long.
      constexpr size_t kMaxTokens = 1000;
      if (tokens_.size() - first_token > kMaxTokens) {
        fail_here(fmt::format("a tag of more than {} tokens", kMaxTokens));
      }
      token(open_brackets);
    }
  }

  void token(std::string& open_brackets) {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (is_word(c)) {
      const size_t end =
          static_cast<size_t>(std::find_if_not(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                               source_.end(), is_word) -
                              source_.begin());
      push(Kind::name, source_.substr(at_, end - at_));
      return advance(end - at_);
    }
    if (c == '\'' || c == '"') return string(c);
    symbol(open_brackets);
  }

  void symbol(std::string& open_brackets) {
    constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingles = "+-/*%~[](){}><=.:|,;";
    const std::string_view two = rest().substr(0, 2);
    if (std::find(kPairs.begin(), kPairs.end(), two) != kPairs.end()) {
      push(Kind::symbol, std::string(two));
      return advance(2);
    }
    const char c = source_[at_];
    if (kSingles.find(c) == std::string_view::npos) {
      fail_here(is_ascii({&c, 1}) ? fmt::format("the character '{}'", c)
                                  : std::string("a character beyond ASCII outside of a string"));
    }
    if (c == '(' || c == '[' || c == '{') open_brackets += c;
    if (c == ')' || c == ']' || c == '}') {
      const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open_brackets.empty() || open_brackets.back() != open) {
        fail_here(fmt::format("'{}' without '{}'", c, open));
      }
      open_brackets.pop_back();
    }
    push(Kind::symbol, std::string(1, c));
    advance(1);
  }

  // The end of a run of digits, which single underscores may separate; `from` if there are none.
  size_t digits_end(size_t from, int base) const {
    size_t i = from;
    while (i < source_.size()) {
      const size_t digit = i > from && source_[i] == '_' ? i + 1 : i;
      if (digit == source_.size() || !in_base(source_[digit], base)) break;
      i = digit + 1;
    }
    return i;
  }

  // The end of a floating-point number at at_, if there is one.
  std::optional<size_t> float_end() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return std::nullopt;
    size_t end = digits_end(at_, 10);
    bool floating = false;
    if (rest(end).starts_with('.')) {
      const size_t fraction = digits_end(end + 1, 10);
      floating = fraction > end + 1;
      if (floating) end = fraction;
    }
    if (rest(end).starts_with('e') || rest(end).starts_with('E')) {
      const size_t digits = end + 1 + (sign_of(rest(end + 1)) == '\0' ? 0 : 1);
      if (const size_t exponent = digits_end(digits, 10); exponent > digits) return exponent;
    }
    return floating ? std::optional(end) : std::nullopt;
  }

  void number() {
    const auto plain = [&](size_t begin, size_t end) {
      std::string digits = source_.substr(begin, end - begin);
      std::erase(digits, '_');
      return digits;
    };
    if (const auto end = float_end()) {
      const std::string digits = plain(at_, *end);
      Token& token = push(Kind::floating, digits);
      const auto parsed =
          std::from_chars(digits.data(), digits.data() + digits.size(), token.floating);
      if (parsed.ec != std::errc()) fail_here(fmt::format("the number {}", digits));
      return advance(*end - at_);
    }
    int base = 10;
    size_t begin = at_;
    if (source_[at_] == '0') {
      const int letter = at_ + 1 < source_.size() ? source_[at_ + 1] | 0x20 : '\0';
      const int other = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
      const size_t first = at_ + 2 + (rest(at_ + 2).starts_with('_') ? 1 : 0);
      if (other != 0 && digits_end(first, other) > first) {
        base = other;
        begin = first;
      }
    }
    size_t end = digits_end(begin, base);
    if (base == 10 && source_[at_] == '0') {
      // A leading zero ends the number, except that more zeros may follow.
      end = std::min(end, source_.find_first_not_of("0_", at_));
    }
    const std::string digits = plain(begin, end);
    Token& token = push(Kind::integer, digits);
    const auto parsed =
        std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
    if (parsed.ec != std::errc()) fail_here(fmt::format("the number {}", digits));
    advance(end - at_);
  }

  void string(char quote) {
    size_t i = at_ + 1;
    std::string text;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] == '\\') {
        i = escape(i + 1, text);
      } else {
        text += source_[i++];
      }
    }
    if (i >= source_.size()) fail_here("a string that does not end");
    push(Kind::string, std::move(text));
    advance(i + 1 - at_);
  }

  // Appends the character of the escape whose letter is at `i`; returns the position after it.
  size_t escape(size_t i, std::string& out) const {
    if (i >= source_.size()) return i;
    const char letter = source_[i];
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
    if (letter == '\n') return i + 1;
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      out += kMeaning[known];
      return i + 1;
    }
    if (letter >= '0' && letter <= '7') {
      uint32_t value = 0;
      size_t end = i;
      while (end < i + 3 && end < source_.size() && in_base(source_[end], 8)) {
        value = value * 8 + static_cast<uint32_t>(source_[end++] - '0');
      }
      append_utf8(out, value);
      return end;
    }
    const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (digits > 0) return hex_escape(i, digits, out);
    if (letter == 'N' || !is_ascii({&letter, 1})) {
      fail_here(fmt::format("the escape \\{} in a string",
                            letter == 'N' ? "N" : "before a character beyond ASCII"));
    }
    // Python keeps the backslash of an unknown escape.
    out += '\\';
    out += letter;
    return i + 1;
  }

  size_t hex_escape(size_t i, size_t digits, std::string& out) const {
    const std::string_view text = rest(i + 1).substr(0, digits);
    uint32_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const bool whole = text.size() == digits && parsed.ptr == text.data() + digits;
    if (!whole || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      fail_here(fmt::format("the escape \\{}{} in a string", source_[i], text));
    }
    append_utf8(out, value);
    return i + 1 + digits;
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::string Token::describe() const {
  switch (kind) {
    case Kind::data:
      return "text";
    case Kind::print_begin:
      return "{{";
    case Kind::print_end:
      return "}}";
    case Kind::block_begin:
      return "{%";
    case Kind::block_end:
      return "%}";
    case Kind::end:
      return "the end of the template";
    case Kind::string:
      return "a string";
    default:
      return "\"" + text + "\"";
  }
}

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace jackscrew::jinja
