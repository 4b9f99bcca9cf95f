#include "text/tokenizer/oniguruma.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace jackscrew {

namespace {

// Characters as they stand between the brackets of a class.

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
    while (at_ < pattern_.size()) {
      switch (pattern_[at_]) {
        case '(':
          open_group();
          break;
        case ')':
          close_group();
          break;
        case '{':
        case '*':
        case '+':
        case '?':
          repeat();
          break;
        default:
          piece();
      }
    }
    out_.append(groups_.back().options, ')');
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin = 0;    // in the result
    size_t options = 0;  // groups within it that stand for options such as (?i), still open
  };

  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::model, "the tokenizer's pattern \"{}\" {}, which is not supported", pattern_,
         what);
  }

  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  void begin_atom(size_t at) {
    atom_ = at;
    is_repeated_ = false;
  }

  // Anything but a group or a quantifier: an escape, a class, an anchor or a character.
  void piece() {
    const char c = pattern_[at_];
    const bool continues = (static_cast<uint8_t>(c) & 0xC0u) == 0x80u;  // a character
    if (!continues) begin_atom(out_.size());
    if (c == '\\') {
      out_ += escape();
    } else if (c == '[') {
      out_ += character_class();
    } else if (c == '^' || c == '$') {  // to Oniguruma the ends of any line
      out_ += fmt::format("(?m:{})", c);
      ++at_;
    } else {
      out_ += c;
      ++at_;
    }
  }

  // Options such as (?i), without a colon, hold to the end of the group. To Oniguruma a bar behind
  // them is within what they hold for: they become a group.
  void open_group() {
    const size_t end = pattern_.find_first_of(":)", at_);
    const std::string_view options = peek(1) == '?' && end != std::string_view::npos
                                         ? pattern_.substr(at_ + 2, end - at_ - 2)
                                         : std::string_view();
    const bool names_options = !options.empty() && std::ranges::all_of(options, [](char c) {
      return c == '-' || (c >= 'a' && c <= 'z');
    });
    if (!names_options || pattern_[end] == ':') groups_.push_back({out_.size()});
    begin_atom(out_.size());
    out_ += '(';
    ++at_;
    if (!names_options) {
      if (peek() == '?') out_ += pattern_[at_++];
      return;
    }
    if (options.find_first_not_of("im-") != std::string_view::npos) {
      refuse(fmt::format("has the options \"{}\"", options));
    }
    out_ += '?';
    // With m the dot is any character, which is s to PCRE2.
    for (const char c : options) out_ += c == 'm' ? 's' : c;
    out_ += ':';
    if (pattern_[end] == ')') ++groups_.back().options;
    at_ = end + 1;
  }

  void close_group() {
    if (groups_.size() > 1) {
      out_.append(groups_.back().options, ')');
      begin_atom(groups_.back().begin);
      groups_.pop_back();
    }
    out_ += ')';
    ++at_;
  }

  // A quantifier, or a brace like any other character. One behind another repeats what that does,
  // for which PCRE2 needs a group. Of those in braces only {low,high} has a reluctant form and none
  // a possessive one.
  void repeat() {
    std::string times(1, peek());
    size_t size = 1;
    std::string_view kinds = "?+";
    if (peek() == '{') {
      const size_t end = std::min(pattern_.find('}', at_), pattern_.size());
      const std::string_view inside = pattern_.substr(at_ + 1, end - at_ - 1);
      const size_t comma = std::min(inside.find(','), inside.size());
      const bool is_fixed = comma == inside.size();
      const std::string_view low = inside.substr(0, comma);
      const std::string_view high = is_fixed ? low : inside.substr(comma + 1);
      const auto is_number = [](std::string_view text) {
        return text.find_first_not_of("0123456789") == std::string_view::npos;
      };
      if (end == pattern_.size() || !is_number(low) || !is_number(high) ||
          (low.empty() && high.empty())) {
        begin_atom(out_.size());
        out_ += "\\{";
        ++at_;
        return;
      }
      const std::string_view least = low.empty() ? "0" : low;
      times = is_fixed ? fmt::format("{{{}}}", least) : fmt::format("{{{},{}}}", least, high);
      size = inside.size() + 2;
      kinds = is_fixed ? "" : "?";
    }
    if (is_repeated_) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    out_ += times;
    at_ += size;
    if (at_ < pattern_.size() && kinds.find(peek()) != kinds.npos) out_ += pattern_[at_++];
    is_repeated_ = true;
  }

  // Copies the escape here and moves behind it. Escapes that PCRE2 reads otherwise are replaced.
  std::string copied_escape() {
    const char letter = peek(1);
    const bool has_code = (letter == 'x' || letter == 'o') && peek(2) == '{';
    const size_t end = has_code ? pattern_.find('}', at_) : at_ + 1;
    const std::string out(pattern_.substr(at_, end == std::string_view::npos ? 2 : end + 1 - at_));
    at_ += out.size();
    if (letter == 'v') return R"(\x{b})";  // to PCRE2 any vertical space
    // To PCRE2 these are escapes, to Oniguruma the letters.
    if (letter == 'V' || letter == 'Q' || letter == 'E') return {letter};
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

  // PCRE2 cannot put the complements \W, \H and \S of these sets into a class, so [a\W] becomes an
  // alternation: [^...] or [a].
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
      // A character that is in every set of `lack`, and not in `inside`.
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
  std::string out_;
  size_t atom_ = 0;           // where in out_ that begins which a quantifier behind it would repeat
  bool is_repeated_ = false;  // a quantifier is behind it already
  std::vector<Group> groups_ = {{}};  // those that are open; the first is the whole pattern
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  return Translation(pattern).run();
}

}  // namespace jackscrew
