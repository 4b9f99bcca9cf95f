#include "text/tokenizer/oniguruma.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace jackscrew {

namespace {

// What stands between the brackets of a class.

// Unicode's White_Space. PCRE2's own \s also matches U+180E, which stopped being a space in Unicode
// 6.3 and is none in the engines that trained the vocabularies.
constexpr std::string_view kSpace = R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a})"
                                    R"(\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
// PCRE2's own \w has all numbers, no marks and no connectors but the underscore.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside of classes Oniguruma has a table of Latin-1, with which superscripts and fractions are of
// words, too.
constexpr std::string_view kWordAlone =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kHexDigit = "0-9a-fA-F";  // PCRE2's own \h is a horizontal space

// POSIX classes, that is [:alpha:] and its like; those left out mean the same to both.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kPosix = {
    {{"alpha", R"(\p{Alphabetic})"},
     {"alnum", R"(\p{Alphabetic}\p{Nd})"},
     {"lower", R"(\p{Lowercase})"},
     {"upper", R"(\p{Uppercase})"},
     {"punct", R"(\p{P}\p{S})"},
     {"space", kSpace},
     {"word", kWord}}};

// Whether \S, \W or \H names all but the set of \s, \w or \h.
bool is_complement(char letter) {
  return letter >= 'A' && letter <= 'Z';
}

// The set that \s, \w or \h names, or whose complement \S, \W or \H does; nullopt: another escape.
std::optional<std::string_view> set_of(char letter, bool in_class) {
  switch (letter) {
    case 's':
    case 'S':
      return kSpace;
    case 'w':
    case 'W':
      return in_class ? kWord : kWordAlone;
    case 'h':
    case 'H':
      return kHexDigit;
    default:
      return std::nullopt;
  }
}

bool is_script(std::string_view name) {
  const std::string pattern = fmt::format(R"(\p{{sc:{}}})", name);
  int code = 0;
  size_t at = 0;
  pcre2_code* const compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                             pattern.size(), PCRE2_UTF, &code, &at, nullptr);
  pcre2_code_free(compiled);
  return compiled != nullptr;
}

class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    std::string out;
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        out += escape();
      } else if (c == '[') {
        out += character_class();
      } else {
        out += c;
        ++at_;
      }
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::model, "the tokenizer's pattern \"{}\" {}, which is not supported", pattern_,
         what);
  }

  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  // The escape here as it is, and goes on behind it.
  std::string copied_escape() {
    const std::string out(pattern_.substr(at_, 2));
    at_ += out.size();
    return out;
  }

  // \p{Name}. To PCRE2 a script's bare name also means characters that other scripts share with it,
  // such as the punctuation of Chinese.
  std::string property() {
    const size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) return copied_escape();
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    at_ = end + 1;
    return fmt::format(R"(\{}{{{}{}}})", negated ? 'P' : 'p', is_script(name) ? "sc:" : "", name);
  }

  std::string escape() {
    const char letter = peek(1);
    if (const auto set = set_of(letter, false)) {
      at_ += 2;
      return fmt::format("[{}{}]", is_complement(letter) ? "^" : "", *set);
    }
    switch (letter) {
      case 'b':
        at_ += 2;
        return fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWordAlone);
      case 'B':
        at_ += 2;
        return fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWordAlone);
      case 'p':
      case 'P':
        return property();
      default:
        return copied_escape();
    }
  }

  // [:alpha:] and its like, within a class.
  std::string posix_class() {
    const size_t end = pattern_.find(":]", at_ + 2);
    if (end == std::string_view::npos) refuse("nests character classes");
    const std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
    if (name.starts_with('^')) refuse(fmt::format("has the class [:{}:]", name));
    const std::string_view whole = pattern_.substr(at_, end + 2 - at_);
    at_ = end + 2;
    for (const auto& [posix, characters] : kPosix) {
      if (posix == name) return std::string(characters);
    }
    return std::string(whole);
  }

  // A class with \W, \H or \S is one of a class without them or of their own: PCRE2 cannot nest
  // them.
  std::string character_class() {
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::string inside;                  // the characters that are named
    std::vector<std::string_view> lack;  // sets whose complements are named
    for (bool first = true;; first = false) {
      const char c = peek();
      if (at_ >= pattern_.size()) return fmt::format("[{}{}", negated ? "^" : "", inside);
      if (c == ']' && !first) break;
      if ((c == '[' && peek(1) != ':') || (c == '&' && peek(1) == '&')) {
        refuse("nests character classes");
      }
      if (c == '[') {
        inside += posix_class();
      } else if (c == '\\') {
        add_escape(inside, lack);
      } else {
        inside += c;
        ++at_;
      }
    }
    ++at_;
    if (lack.empty()) return fmt::format("[{}{}]", negated ? "^" : "", inside);
    std::string out = "(?:";
    if (negated) {
      // None of `inside`, and of each set that is lacking.
      for (const std::string_view set : lack) out += fmt::format("(?=[{}])", set);
      return out + (inside.empty() ? "(?s:.))" : fmt::format("[^{}])", inside));
    }
    for (const std::string_view set : lack) out += fmt::format("[^{}]|", set);
    if (inside.empty()) {
      out.pop_back();
      return out + ")";
    }
    return out + fmt::format("[{}])", inside);
  }

  void add_escape(std::string& inside, std::vector<std::string_view>& lack) {
    const char letter = peek(1);
    if (const auto set = set_of(letter, true)) {
      at_ += 2;
      if (is_complement(letter)) return lack.push_back(*set);
      inside += *set;
    } else {
      inside += letter == 'p' || letter == 'P' ? property() : copied_escape();
    }
  }

  std::string_view pattern_;
  size_t at_ = 0;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  return Translation(pattern).run();
}

}  // namespace jackscrew
